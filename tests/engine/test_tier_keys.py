"""What is found again in a store, and what another model left there."""

import shutil

import pytest

from interlock.core.request import Request
from tests.engine.tiers import (
    PROMPTS,
    greedy,
    one_by_one,
    outputs,
    tiered,
    tiny,
)


def test_a_second_process_finds_what_the_first_wrote(models, alone):
    engine, store = tiered(models["gqa"])
    one_by_one(engine, PROMPTS)
    engine.close()
    again, _ = tiered(models["gqa"], store=store)
    records = one_by_one(again, PROMPTS)
    assert outputs(records) == alone("gqa", PROMPTS)
    assert [record.cached_tokens for record in records] == [28] * len(PROMPTS)
    again.close()


def test_keys_do_not_depend_on_the_process_or_on_where_the_model_lies(models, tmp_path):
    moved = shutil.copytree(models["gqa"], tmp_path / "elsewhere")
    stored = []
    for model in (models["gqa"], moved):
        engine, store = tiered(model)
        one_by_one(engine, PROMPTS[:1])
        engine.close()
        stored.append(set(store.entries))
    assert stored[0] == stored[1]


@pytest.mark.parametrize(
    "change",
    [
        "weights",
        "tenant",
        "dtype=float32",
        "cache.page_size=2",
        "spec=eagle",
    ],
)
def test_leftovers_of_another_model_layout_or_tenant_are_misses(models, tmp_path, change):
    engine, store = tiered(models["gqa"])
    one_by_one(engine, PROMPTS[:2])
    engine.close()
    model, more = models["gqa"], []
    if change == "weights":
        model = tiny(tmp_path, "gqa", seed=1)
    elif change == "spec=eagle":
        more = [change, f"spec.path={model}/eagle"]
    elif change != "tenant":
        more = [change]
    other, _ = tiered(model, *more, store=store)
    if change == "tenant":
        other.submit(Request(0, PROMPTS[0], greedy(), tenant="b"))
        (record,) = [output.finished for output in other.outputs() if output.finished]
    else:
        record = one_by_one(other, PROMPTS[:1])[0]
    assert record.cached_tokens == 0
    assert other.core.cache.tiers.counters.loaded == 0
    other.close()


def test_an_entry_of_another_layout_under_the_right_key_is_removed_and_computed(models, alone):
    engine, store = tiered(models["gqa"])
    one_by_one(engine, PROMPTS[:1])
    engine.close()
    broken = list(store.entries)
    for key in broken:
        store.entries[key] = bytes(len(store.entries[key]))
    again, _ = tiered(models["gqa"], "cache.write=back", store=store)
    assert outputs(one_by_one(again, PROMPTS[:1])) == alone("gqa", PROMPTS[:1])
    assert again.core.cache.tiers.counters.missed == 7
    assert store.failures["layout"] == 1
    assert broken[0] not in store.entries
    again.close()
