"""Pictures of a cache are drawn from the events of a run, whatever its size."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.assemble import assemble
from interlock.core.errors import ConfigError, RunFolderError
from interlock.driver.cache_pictures import draw_pictures
from interlock.driver.cache_tree import collapsed, tree_of
from interlock.driver.kv_replica import Replica
from interlock.driver.picture import main
from tests.engine.serving import asking

HEADER = {
    "schema": "interlock.kv_events", "version": 1, "page_size": 4, "lookback_tokens": 0,
    "media": ["device"], "pool_pages": [100],
}  # fmt: skip


def runs_of(roots):
    found, waiting = [], list(roots)
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1].children
    return found


@settings(max_examples=60, deadline=None)
@given(
    parents=st.lists(st.integers(0, 400), min_size=1, max_size=150),
    used=st.lists(st.integers(0, 149), max_size=20),
    most=st.integers(1, 60),
)
def test_the_tree_has_every_token_once_and_no_more_leaves_than_asked(parents, used, most):
    replica = Replica(HEADER)
    keys = [None]
    for number, parent in enumerate(parents):
        stored = {
            "event": "stored", "keys": [str(number)], "parent": keys[parent % len(keys)],
            "namespace": 0, "token_ids": [number] * 4, "ahead_token_ids": [], "words": None,
        }  # fmt: skip
        keys.append(str(number))
        replica.apply({"seq": number, "step": number, "time_s": 0.0, "events": [stored]})
    for place in used:
        event = {"event": "used", "key": str(place % len(parents)), "pages": 1}
        replica.apply({"seq": replica.seq, "step": 0, "time_s": 1.0, "events": [event]})
    roots = tree_of(replica)
    runs = runs_of(roots)
    assert sum(run.tokens for run in runs) == 4 * len(parents)
    assert all(c.depth == run.depth + run.tokens for run in runs for c in run.children)
    leaves = sum(not run.children for run in runs)
    drawn = runs_of(collapsed(roots, most))
    assert sum(not run.children for run in drawn) <= max(most, 2)
    assert sum(run.merged or not run.children for run in drawn) == leaves
    assert sum(run.lanes for run in roots) == sum(not run.children for run in drawn)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """Events of a run with many prefixes and a tier."""
    folder = tmp_path_factory.mktemp("run")
    engine = assemble(
        ["executor=fixed", "cache.page_size=4", "cache.num_pages=400", "cache/tiers=priced",
         "executor.kv_bytes_per_token=1000", "cache/events=jsonl",
         f"cache.events.path={folder / 'kv_events.jsonl'}"]
    )  # fmt: skip
    for index in range(120):
        prompt = (*range(2, 18), 20 + index % 5, *range(30 + index % 7, 50), 100 + index)
        engine.submit(asking(index, prompt, 5, 0.01 * index))
    for _ in engine.outputs():
        pass
    engine.close()
    return folder


def test_both_pictures_are_drawn_by_the_command(run_dir, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main([str(run_dir), "--out", str(tmp_path / "pictures")], None) == 0
    paths = [tmp_path / "pictures" / f"cache_{name}.png" for name in ("tree", "pool")]
    assert capsys.readouterr().out.split() == [str(path) for path in paths]
    assert all(path.read_bytes()[1:4] == b"PNG" for path in paths)
    first, _ = draw_pictures(run_dir, tmp_path / "early", step=3)
    assert first.read_bytes() != paths[0].read_bytes()


def test_a_run_without_events_is_refused_with_what_to_do(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(RunFolderError, match="cache/events=jsonl writes it"):
        draw_pictures(tmp_path, tmp_path)
    (tmp_path / "kv_events.jsonl").write_text(json.dumps({"schema": "other"}) + "\n")
    with pytest.raises(RunFolderError, match="version 1"):
        draw_pictures(tmp_path, tmp_path)


@pytest.mark.parametrize("step", [99999, -1])
def test_a_step_that_the_run_has_not_is_refused_with_those_it_has(run_dir, tmp_path, step):
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match=rf"--step={step}: the steps with events are \d+ to \d+$"):
        main([str(run_dir), "--out", str(tmp_path / "no"), "--step", str(step)], None)
    assert not (tmp_path / "no").exists()


def test_an_event_that_is_cut_off_is_named_and_the_others_are_drawn(run_dir, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path, text = tmp_path / "kv_events.jsonl", (run_dir / "kv_events.jsonl").read_text()
    path.write_text(text[:-20])
    assert main([str(tmp_path)], None) == 0
    assert f"{path}, line {text.count(chr(10))}: cut off" in capsys.readouterr().err
    assert (tmp_path / "cache_tree.png").is_file()


@pytest.mark.parametrize(
    ("line", "put"),
    [(1, ""), (1, "[]"), (2, "7"), (2, "{}"), (3, '{"step": 1}'), (4, ""), (5, "not json")],
)
def test_events_that_cannot_be_read_are_named_by_file_and_line(run_dir, tmp_path, line, put):
    pytest.importorskip("matplotlib")
    lines = (run_dir / "kv_events.jsonl").read_text().splitlines(keepends=True)
    lines[line - 1] = put and f"{put}\n"
    path = tmp_path / "kv_events.jsonl"
    path.write_text("".join(lines))
    with pytest.raises(RunFolderError, match=f"^{path}, line {line}: "):
        draw_pictures(tmp_path, tmp_path)


def test_pictures_that_cannot_be_written_name_the_place_and_the_option(run_dir, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=rf"^{tmp_path / 'file'}: .*--out FOLDER"):
        main([str(run_dir), "--out", str(tmp_path / "file")], None)


def test_without_matplotlib_the_extra_is_named(run_dir, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'interlock\[plot\]'"):
        draw_pictures(run_dir, tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty; a run with cache/events=jsonl writes it"),
        ('{"schema": ', "line 1: cut off"),
    ],
)
def test_a_file_without_a_whole_line_is_said_to_hold_none(tmp_path, text, reason):
    pytest.importorskip("matplotlib")
    (tmp_path / "kv_events.jsonl").write_text(text)
    with pytest.raises(RunFolderError, match=rf"kv_events\.jsonl(, |: ){reason}"):
        draw_pictures(tmp_path, tmp_path)
