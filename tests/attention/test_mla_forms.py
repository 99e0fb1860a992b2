import pytest
import torch

from interlock.conf.hydra_edge import compose
from interlock.core.errors import ConfigError
from interlock.core.model import AttentionSpec
from interlock.core.testing.attention_oracle import Work
from interlock.core.testing.attention_scene import Scene
from interlock.plugins.attention import MlaConfig
from interlock.plugins.attention.mla import MlaAttention
from interlock.plugins.attention.mla_cost import (
    absorbed_flops,
    cheaper_form,
    expanded_flops,
    visible_pairs,
)
from interlock.plugins.attention.reference import ReferenceAttention

SMALL = AttentionSpec("latent", 4, 1, 6, 4, 6**-0.5, None, 8, 4, 2)
DEEPSEEK_V3 = AttentionSpec("latent", 128, 1, 192, 128, 192**-0.5, None, 512, 128, 64)


def test_absorbed_expanded_and_reference_give_the_same_outputs() -> None:
    outputs = []
    for backend in (MlaAttention("absorbed"), MlaAttention("expanded"), ReferenceAttention()):
        scene = Scene(backend, (SMALL,), (50, 20), page_size=4)
        first = scene.check_step(Work(0, 45), Work(1, 3))
        second = scene.check_step(Work(0, 1, (-1, -1, 0)), Work(1, 12))
        outputs.append(torch.cat((*first, *second)))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(outputs[0], outputs[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("context", [16, 1000, 100_000])
@pytest.mark.parametrize("new", [1, 4, 8])
def test_decode_and_verification_are_cheaper_absorbed(context: int, new: int) -> None:
    assert cheaper_form(DEEPSEEK_V3, new, context, context + new) == "absorbed"


@pytest.mark.parametrize(("new", "start"), [(1, 0), (4096, 0), (1024, 3000), (2048, 60_000)])
def test_prompts_and_long_chunks_are_cheaper_expanded(new: int, start: int) -> None:
    assert cheaper_form(DEEPSEEK_V3, new, start, start + new) == "expanded"


def test_long_contexts_cross_over_at_the_stated_number_of_new_tokens() -> None:
    start = 1_000_000
    cheaper = [cheaper_form(DEEPSEEK_V3, new, start, start + new) for new in (169, 172)]
    assert cheaper == ["absorbed", "expanded"]


@pytest.mark.parametrize("window", [None, 1, 5, 8, 100])
@pytest.mark.parametrize(("new", "start"), [(1, 0), (3, 4), (9, 0), (20, 7), (6, 90)])
def test_visible_pairs_equal_a_count_one_by_one(new: int, start: int, window: int | None) -> None:
    positions = range(start, start + new)
    pairs = [
        (query, key)
        for query in positions
        for key in range(query + 1)
        if window is None or key > query - window
    ]
    assert visible_pairs(new, start, window) == len(pairs)


def test_flops_of_a_decode_step_are_those_of_its_matrix_products() -> None:
    heads, rank, nope, rope, value, entries = 128, 512, 128, 64, 128, 1001
    query = 2 * heads * nope * rank + 2 * heads * rank * value
    absorbed = query + 2 * heads * entries * (rank + rope) + 2 * heads * entries * rank
    assert absorbed_flops(DEEPSEEK_V3, 1, entries) == absorbed
    expand = 2 * entries * rank * heads * (nope + value)
    expanded = expand + 2 * heads * entries * (nope + rope) + 2 * heads * entries * value
    assert expanded_flops(DEEPSEEK_V3, entries, entries) == expanded


def test_one_step_may_mix_both_forms() -> None:
    backend = MlaAttention()
    scene = Scene(backend, (SMALL,), (40, 41), page_size=4)
    scene.check_step(Work(0, 39))
    assert cheaper_form(SMALL, 1, 39, 40) == "absorbed"
    assert cheaper_form(SMALL, 41, 0, 41) == "expanded"
    scene.check_step(Work(0, 1), Work(1, 41))


def test_unknown_form_names_the_setting_and_the_closest_match() -> None:
    with pytest.raises(ConfigError, match=r"no form named 'absorb'; did you mean 'absorbed'"):
        MlaConfig(form="absorb")
    with pytest.raises(ConfigError, match="attention: no form named 'absorb'") as error:
        compose(["attention=mla", "attention.form=absorb", "cache.page_size=0"])
    assert len(error.value.problems) == 2
