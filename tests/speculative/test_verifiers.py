"""Every verifier through its contract, and what each of them is asked for."""

import math
from typing import NamedTuple

import pytest
import torch

from interlock.core.batch import NO_DRAFT, Draft
from interlock.core.capabilities import Composition, DraftsChains, SamplesDrafts
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError, ContractError
from interlock.core.testing.verifier_contract import ListRows, VerifierContract, markov_rows
from interlock.core.verifier import Verdict
from interlock.plugins.speculative.verifiers.block import Block
from interlock.plugins.speculative.verifiers.options import TypicalConfig, components
from interlock.plugins.speculative.verifiers.ratio import Ratio
from interlock.plugins.speculative.verifiers.recursive import Recursive
from interlock.plugins.speculative.verifiers.target_only import TargetOnly
from interlock.plugins.speculative.verifiers.typical import Typical


class TestTargetOnly(VerifierContract):
    def make(self):
        return TargetOnly()


class TestRatio(VerifierContract):
    trees = False

    def make(self):
        return Ratio()


class TestBlock(VerifierContract):
    trees = False

    def make(self):
        return Block()


class TestRecursive(VerifierContract):
    def make(self):
        return Recursive()


class TestTypical(VerifierContract):
    lossless = False

    def make(self):
        return Typical(0.09, 0.3)


RULES = (TargetOnly, Ratio, Block, Recursive, lambda: Typical(0.09, 0.3))


@pytest.mark.parametrize("rule", [Ratio, Block])
def test_a_tree_is_no_draft_for_a_rule_of_chains(rule):
    tree = Draft((1, 2), (-1, -1))
    with pytest.raises(ContractError, match="is a rule for chains and got the tree"):
        rule().accept([tree], markov_rows([tree], [0]))
    chain = Draft((1, 2), (-1, 0))
    assert rule().accept([chain], markov_rows([chain], [0])) == rule().accept(
        [Draft((1, 2))], markov_rows([chain], [0])
    )


@pytest.mark.parametrize("rule", RULES)
def test_steps_without_drafts_ask_for_no_laws(rule):
    class Plain(ListRows):
        def laws(self):
            raise AssertionError("plain decoding needs no laws")

    rows = Plain(((0.5, 0.5), (0.1, 0.9)), (3, 4), (0, 0))
    verdicts = rule().accept([NO_DRAFT, NO_DRAFT], rows)
    assert verdicts == [Verdict((), token) for token in rows.sample()]


@pytest.mark.parametrize("rule", [Ratio, Block, Recursive])
def test_a_drafter_with_the_targets_law_is_accepted_whole(rule):
    law = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    for seed in range(50):
        draft = Draft((seed % 3,) * 4, laws=law.expand(4, -1))
        rows = markov_rows([draft], [seed], laws=law.expand(3, -1).tolist())
        (verdict,) = rule().accept([draft], rows)
        assert verdict.path == (0, 1, 2, 3)


@pytest.mark.parametrize("rule", [Ratio, Block, Recursive])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_left_of_the_target_after_rounding_is_the_target_again(rule, dtype):
    """q is p but for a rounding that makes the candidate refused once in a billion times."""

    class Last(ListRows):
        def uniforms(self, purpose, sample=0):
            return super().uniforms(purpose, sample) * 0 + (1 - 2**-53)

    p = [0.25, 0.25, 0.5]
    q = torch.tensor([[0.25 + 1e-7, 0.25, 0.5]], dtype=dtype)
    (verdict,) = rule().accept([Draft((0,), laws=q)], Last((p, p), (0, 0), (0, 1)))
    assert verdict == Verdict((), 2)


def test_laws_of_several_dtypes_and_requests_are_told_apart():
    """Each verdict is that of the request alone, whatever the others bring."""
    drafts = [
        Draft((1, 0), laws=torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])),
        NO_DRAFT,
        Draft((2,)),
        Draft((2, 1), laws=torch.full((2, 3), 1 / 3, dtype=torch.float64)).first(1),
    ]
    for rule in (Ratio, Block, Recursive):
        for seed in range(0, 400, 4):
            seeds = range(seed, seed + 4)
            together = rule().accept(drafts, markov_rows(drafts, seeds))
            for draft, own, verdict in zip(drafts, seeds, together, strict=True):
                assert rule().accept([draft], markov_rows([draft], [own])) == [verdict]


def test_typical_keeps_the_longest_path_that_is_likely_enough():
    laws = ([0.5, 0.3, 0.2], [0.05, 0.9, 0.05], [0.0, 0.1, 0.9], [1 / 3] * 3, [0.2, 0.2, 0.6])
    draft = Draft((0, 1, 2, 2), (-1, -1, 1, 0))
    rows = ListRows([laws[0], laws[3], laws[2], laws[1], laws[4]], [0] * 5, [0, 1, 1, 2, 2])
    # Both paths are accepted whole: 0.5 * 1/3 against 0.3 * 0.9.
    assert Typical(0.09, 0.3).accept([draft], rows) == [Verdict((1, 2), 1)]


def test_typical_asks_for_less_where_the_target_is_unsure():
    entropy = -2 * 0.04 * math.log(0.04) - 0.92 * math.log(0.92)
    law, draft = [0.04, 0.04, 0.92], Draft((0,))
    limit = math.exp(-entropy) * 0.05
    for delta, path in ((0.05 * 0.04 / limit * 0.999, (0,)), (0.05 * 0.04 / limit * 1.001, ())):
        rows = ListRows([law, law], [0, 0], [0, 1])
        assert Typical(0.09, delta).accept([draft], rows) == [Verdict(path, 2)]
    assert Typical(0.03, 0.9).accept([draft], ListRows([law, law], [0] * 2, [0, 1]))[0].path == (0,)


def test_typical_options_that_cannot_be_are_all_named():
    with pytest.raises(ConfigError) as caught:
        TypicalConfig(epsilon=1.0, delta=0.0)
    assert "epsilon=1.0 is not a number between 0 and 1" in str(caught.value)
    assert "delta=0.0 is not a number above 0" in str(caught.value)


class Choice(NamedTuple):
    proposal: str = "greedy"


@pytest.mark.parametrize(
    ("rule", "provided", "drafter", "reason"),
    [
        ("ratio", (), object(), "and spec=x chooses them: choose a drafter that has spec.proposal"),
        ("block", (DraftsChains(),), Choice(), "and spec=x chooses them: set spec.proposal=sampl"),
        ("recursive", (DraftsChains(),), Choice(), "spec.proposal=sampled, or spec/verifier=targ"),
        ("ratio", (SamplesDrafts(),), Choice(), "spec=x drafts trees: set spec/verifier=recursiv"),
        ("block", (SamplesDrafts(),), Choice(), "is a rule for chains, and spec=x drafts trees"),
        ("ratio", (SamplesDrafts(), DraftsChains()), Choice(), None),
        ("block", (SamplesDrafts(), DraftsChains()), Choice(), None),
        ("recursive", (SamplesDrafts(),), Choice(), None),
        ("target_only", (), object(), None),
        ("typical", (), object(), None),
    ],
)
def test_what_a_rule_cannot_serve_is_refused_in_one_sentence(rule, provided, drafter, reason):
    (component,) = (c for c in components() if c.name == rule)
    config = component.config()
    composition = Composition({"spec": ("x", drafter)}, frozenset(provided), None)
    found = [asked(composition) for asked in component.requires(config, None)]
    assert all(reason in one for one in found if one) if reason else not any(found)
    assert sum(one is not None for one in found) == (reason is not None)


@pytest.mark.parametrize("component", components(), ids=lambda component: component.name)
def test_verifiers_are_built_by_name(component):
    verifier = component.make(component.config(), BuildContext(model=None))
    assert type(verifier).__name__.lower() == component.name.replace("_", "")
