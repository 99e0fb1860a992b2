"""Snapshots of real pages: tokens of requests alone, damage named, other engines refused."""

import json
from contextlib import closing
from shutil import copytree

import pytest

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import assemble
from interlock.core.errors import ConfigError, RunFolderError
from interlock.core.registry import load_registry
from interlock.core.request import Request
from interlock.core.testing.integrity import check_engine
from interlock.core.testing.tiny_adapter import write_adapter
from interlock.driver.rerun import Rerun
from interlock.driver.run import run
from interlock.driver.run_folder import read_run
from interlock.plugins.cache.watches.differences import differences
from tests.engine.cached_content import Follower, walked
from tests.engine.serving import tokens
from tests.engine.tiers import base, greedy, outputs, serve, tiny


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    kinds = ("gqa", "hybrid", "mla_moe")
    return {kind: tiny(tmp_path_factory.mktemp("models"), kind) for kind in kinds}


PROMPTS = [tokens(29, salt) for salt in range(5)]


def saved(model, folder, *more, prompts=PROMPTS):
    """A snapshot of an engine that served these prompts, and what it gave when asked again."""
    overrides = base(model, "cache.num_pages=200", *more)
    engine = assemble([*overrides, "cache/snapshot=directory", f"cache.snapshot.save={folder}"])
    for prompt in prompts:
        serve(engine, [prompt])
    engine.watches["cache/snapshot"].save(folder)
    again = [serve(engine, [prompt])[0] for prompt in prompts]
    engine.close()
    return again


@pytest.fixture(scope="module")
def one_prompt(models, tmp_path_factory):
    """A snapshot of one prompt, to be copied."""
    folder = tmp_path_factory.mktemp("one")
    saved(models["gqa"], folder, prompts=PROMPTS[:1])
    return folder


def loaded(model, folder, *more):
    """An engine that begins with a snapshot."""
    overrides = base(model, "cache.num_pages=200", *more)
    return assemble([*overrides, "cache/snapshot=directory", f"cache.snapshot.load={folder}"])


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("gqa", ["cache=radix"]),
        ("gqa", ["cache=block_hash", "cache.index.hash=sha256"]),
        ("gqa", ["cache.page_size=1"]),
        ("gqa", ["spec=eagle", "spec.path={}/eagle"]),
        ("gqa", ["dtype=float32", "cache.dtype=fp8"]),
        ("hybrid", ["cache=radix"]),
        ("hybrid", ["spec=eagle", "spec.path={}/eagle"]),
        ("mla_moe", ["cache=block_hash"]),
    ],
)
def test_a_loaded_cache_gives_the_tokens_of_requests_alone_and_the_same_hits(
    models, tmp_path, kind, more
):
    more = [one.format(models[kind]) for one in more]
    kept = saved(models[kind], tmp_path, *more)
    engine = loaded(models[kind], tmp_path, *more)
    check_engine(engine)
    again = [serve(engine, [prompt])[0] for prompt in PROMPTS]
    assert [r.cached_tokens for r in again] == [r.cached_tokens for r in kept]
    assert min(r.cached_tokens for r in again) > 0
    rows = [one for one in more if one.startswith(("dtype", "cache.dtype"))]
    reference = assemble(base(models[kind], "cache=none", *rows))
    alone = [serve(reference, [prompt])[0] for prompt in PROMPTS]
    assert outputs(again) == outputs(alone)
    facts = engine.watches["cache/snapshot"].facts()
    assert facts["restored_pages"] > 0 == facts["left_out_pages"]
    engine.close()


def test_a_smaller_pool_takes_what_eviction_would_have_left(models, tmp_path):
    saved(models["gqa"], tmp_path)
    engine = loaded(models["gqa"], tmp_path, "cache.num_pages=20")
    check_engine(engine)
    facts = engine.watches["cache/snapshot"].facts()
    assert facts["restored_pages"] == 20
    assert facts["left_out_pages"] == 8 * len(PROMPTS) - 20
    hits = [serve(engine, [prompt])[0].cached_tokens for prompt in reversed(PROMPTS[3:])]
    assert hits == [28, 28], "the newest are whole"
    engine.close()


def test_what_is_restored_is_told_as_such_and_may_be_saved_again(models, tmp_path):
    saved(models["hybrid"], tmp_path / "a")
    both = [f"cache.snapshot.save={tmp_path / 'b'}", "cache/events=memory"]
    engine = loaded(models["hybrid"], tmp_path / "a", *both)
    follower = Follower(engine, compare=False)
    held = walked(engine)
    serve(engine, [tokens(5, 9)])
    engine.close()
    stored = follower.events("stored")
    assert [event["source"] for event in stored][-1] == "computed"
    assert sum(len(e["keys"]) for e in stored if e["source"] == "snapshot") == sum(map(len, held))
    again = loaded(models["hybrid"], tmp_path / "b")
    assert [part in walked(again)[0] for part in held[0]] == [True] * len(held[0])
    again.close()


def test_pages_of_adapters_and_tenants_are_found_by_theirs_alone(models, tmp_path):
    one = f"adapters=[{write_adapter(tmp_path / 'one', models['gqa'], ['q_proj'])}]"

    def ask(engine):
        hits = []
        for adapter, tenant in ((None, ""), ("one", ""), (None, "t"), ("one", "t"), (None, "u")):
            engine.submit(Request(0, PROMPTS[0], greedy(), tenant=tenant, adapter=adapter))
            hits += [o.finished.cached_tokens for o in engine.outputs() if o.finished]
        return hits

    overrides = base(models["gqa"], one, "cache/snapshot=directory")
    engine = assemble([*overrides, f"cache.snapshot.save={tmp_path / 's'}"])
    assert ask(engine) == [0] * 5
    engine.close()
    engine = assemble([*overrides, f"cache.snapshot.load={tmp_path / 's'}"])
    assert ask(engine) == [28] * 5
    engine.close()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["dtype=float32"], "dtype=float64, and this engine has dtype=float32"),
        (["cache.page_size=8"], "cache.page_size=4, and this engine has cache.page_size=8"),
        (["cache.dtype=fp8", "dtype=float32"], "cache.dtype=auto"),
        (["numerics=batch_invariant", "attention=auto"], "numerics=fast"),
        (["weights=int8"], "weights=auto"),
        (["spec=eagle", "spec.path={}/eagle"], "has no rows of a drafter"),
        (["adapters=[{}/adapter]"], "0 adapters and this engine has 1"),
        (["another model"], "computed by another model"),
        (["another layout"], "other layers, planes or windows"),
    ],
)
def test_a_snapshot_of_another_engine_is_refused_and_what_differs_is_named(
    models, one_prompt, tmp_path, change, named
):
    model = models["gqa"]
    if change == ["another model"]:
        model, change = tiny(tmp_path, "gqa", seed=1), []
    elif change == ["another layout"]:
        model, change = models["hybrid"], []
    elif change[0].startswith("adapters"):
        write_adapter(model / "adapter", model, ["q_proj"])
    with pytest.raises(ConfigError, match="snapshot") as refused:
        loaded(model, one_prompt, *[one.format(model) for one in change])
    assert any(named in problem for problem in refused.value.problems), refused.value.problems


@pytest.mark.parametrize(
    ("name", "then", "now", "said"),
    [
        ("spec", ["eagle", {"num_drafts": 3, "k": "a"}], ["eagle", {"num_drafts": 5, "k": "a"}],
         ["spec.num_drafts=3, and this engine has spec.num_drafts=5"]),
        ("spec", ["eagle", {"path": "a"}], ["eagle", {"path": "b", "new": 1}],
         ["no option spec.new, and this engine has spec.new=1", "spec.path=a"]),
        ("spec", ["mtp", {}], ["eagle", {"path": "b"}], ["rows of spec=mtp, and this"]),
        ("dtype", None, "float32", ["keys of pages without rows, and this engine pages of"]),
        ("contract", 1, 2, ["version 1 of the plugin contract, and this is 2"]),
    ],
)  # fmt: skip
def test_a_difference_is_told_by_its_setting_and_both_values(name, then, now, said):
    told = differences(name, then, now)
    assert len(told) == len(said)
    for line, part in zip(told, said, strict=True):
        assert part in line
        assert "None" not in line


@pytest.mark.parametrize("part", ["manifest.json", "runs", "rows", "pages"])
@pytest.mark.parametrize("how", ["flipped", "truncated", "gone"])
def test_a_damaged_file_is_named_and_nothing_of_it_is_used(models, one_prompt, tmp_path, part, how):
    copytree(one_prompt, tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.glob(f"{part}*")
    content = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=path.name):
        loaded(models["gqa"], tmp_path)


def test_a_save_that_fails_leaves_the_old_snapshot(models, one_prompt, tmp_path, monkeypatch):
    copytree(one_prompt, tmp_path, dirs_exist_ok=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    engine = loaded(models["gqa"], tmp_path, f"cache.snapshot.save={tmp_path}")
    serve(engine, [PROMPTS[1]])
    for name in ("pwrite", "replace"):
        with monkeypatch.context() as patch:

            def full(*_arguments):
                raise OSError(28, "No space left on device")

            patch.setattr(f"os.{name}", full)
            with pytest.raises(RunFolderError, match="No space left on device"):
                engine.watches["cache/snapshot"].save(tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    engine.close()
    again = loaded(models["gqa"], tmp_path)
    assert serve(again, [PROMPTS[1]])[0].cached_tokens == 28
    assert len(list(tmp_path.iterdir())) == 4, "files of the old one are gone"
    again.close()


def test_a_run_with_a_snapshot_says_so_in_its_manifest_and_cannot_be_rerun(tmp_path):
    overrides = [
        "executor=fixed", "workload=synthetic", "workload.num_requests=6", "progress=false",
        "cache/snapshot=directory", f"cache.snapshot.save={tmp_path / 's'}",
    ]  # fmt: skip
    again = [*overrides[:-1], f"cache.snapshot.load={tmp_path / 's'}"]
    counted = []
    for number, chosen in enumerate((overrides, again)):
        folder = tmp_path / str(number)
        assert run(compose(chosen, load_registry()), folder, chosen) == 0
        manifest = json.loads((folder / "run.json").read_text())
        assert "cache/snapshot" not in manifest["inert"]
        counted.append(manifest["counters"]["cache/snapshot"])
    assert counted[0]["restored_pages"] == 0 < counted[0]["indexed_pages"]
    assert counted[1]["restored_pages"] == counted[0]["indexed_pages"]
    with pytest.raises(ConfigError, match="whose directory may have changed"):
        Rerun(read_run(tmp_path / "0"), []).config()


def test_a_run_that_an_error_ends_saves_nothing(models, tmp_path):
    save = [f"cache.snapshot.save={tmp_path / 's'}"]
    engine = assemble([*base(models["gqa"]), "cache/snapshot=directory", *save])
    serve(engine, [PROMPTS[0]])
    with pytest.raises(RuntimeError), closing(engine):
        raise RuntimeError
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["parallel=tensor", "parallel.size=2", "cache.snapshot.save=x"], "part of every page"),
        (["cache=none", "cache.snapshot.save=x"], "keeps nothing"),
        ([], "cache.snapshot.load=DIR, cache.snapshot.save=DIR or both"),
        (["cache.snapshot.load=/nowhere"], "cache.snapshot.load='/nowhere': manifest.json"),
    ],
)
def test_what_cannot_be_saved_or_loaded_is_refused_with_the_reason(models, overrides, named):
    with pytest.raises(ConfigError, match=named):
        assemble([*base(models["gqa"]), "cache/snapshot=directory", *overrides])


@pytest.mark.parametrize("save", ["file", "file/deeper", "dangling", "n" * 300])
def test_where_nothing_could_be_saved_is_said_before_the_run(tmp_path, save):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"^cache\.snapshot\.save='.*': "):
        assemble(
            ["executor=fixed", "cache/snapshot=directory", f"cache.snapshot.save={tmp_path / save}"]
        )
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_that_became_a_file_during_the_run_is_named(tmp_path):
    engine = assemble(
        ["executor=fixed", "cache/snapshot=directory", f"cache.snapshot.save={tmp_path / 's'}"]
    )
    (tmp_path / "s").write_text("")
    with pytest.raises(RunFolderError, match="s: cannot be written: File exists"):
        engine.close()


def test_a_loaded_page_is_saved_to_a_tier_under_its_key(models, tmp_path):
    saved(models["gqa"], tmp_path)
    tier = ["cache/tiers=cpu", "cache.write=back", "cache.num_pages=12", "cache/load=always"]
    engine = loaded(models["gqa"], tmp_path, *tier)
    for _ in range(2):
        records = [serve(engine, [prompt])[0] for prompt in PROMPTS]
    assert [r.cached_tokens for r in records] == [28] * len(PROMPTS)
    assert outputs(records) == outputs(saved(models["gqa"], tmp_path / "other"))
    engine.close()
