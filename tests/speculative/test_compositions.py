"""Every drafter, verifier and length policy in compositions drawn at random, under little memory.

The models know ten tokens, so that random heads are right now and then and ends come early.
"""

import dataclasses
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from interlock.core.assemble import build_engine
from interlock.core.errors import ConfigError
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from interlock.plugins.models import model_families
from interlock.plugins.speculative import NgramConfig
from interlock.plugins.speculative.heads import block_options as blocks
from interlock.plugins.speculative.heads import medusa_options as medusa
from interlock.plugins.speculative.heads import options as eagle
from interlock.plugins.speculative.host.options import LookaheadConfig, SuffixConfig
from interlock.plugins.speculative.lengths import options as lengths
from tests.engine.serving import Client, asking, configured, outputs, solo
from tests.parallel.threads import with_threads
from tests.speculative.block_oracle import block_config, block_tensors, write_block_head
from tests.speculative.eagle3_files import write_tiny_eagle3
from tests.speculative.feature_heads_oracle import HydraOracle, MedusaOracle, write
from tests.speculative.mtp_oracle import write_mtp

VOCAB, LONGEST = 10, 92
SPARK = {"markov_rank": 6, "markov_head_type": "rnn", "enable_confidence_head": True}
TREE = ((0,), (1,), (2,), (3,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
REGISTRY = with_threads()
PROPOSALS = st.sampled_from(eagle.PROPOSALS)
FEW = st.integers(1, 5)
HEADS = st.integers(1, 3)
TREES = {"num_drafts": st.just(len(TREE)), "tree": st.sampled_from(["auto", TREE])}
PATHS = {"num_drafts": st.just(len(TREE)), "tree": st.sampled_from([None, TREE])}
SPECS = {
    "ngram": st.builds(NgramConfig, num_drafts=FEW, ngram_min=st.just(1)),
    "suffix": st.builds(
        SuffixConfig,
        num_drafts=st.integers(1, 9),
        tree=st.booleans(),
        factor=st.sampled_from([1.0, 3.0]),
        min_prob=st.sampled_from([0.0, 0.3]),
        cached_requests=st.sampled_from([0, 1, 100]),
    ),
    "lookahead": st.builds(LookaheadConfig, window=HEADS, ngram=st.integers(2, 3), guesses=FEW),
    "draft_model": st.builds(blocks.DraftModelConfig, num_drafts=FEW, proposal=PROPOSALS),
    "dflash": st.builds(blocks.DFlashConfig, num_drafts=st.integers(1, 4), proposal=PROPOSALS),
    "ddtree": st.builds(blocks.DFlashConfig, num_drafts=st.integers(1, 12), tree=st.just("ddtree")),
    "dspark": st.builds(blocks.DSparkConfig, num_drafts=FEW, proposal=PROPOSALS),
    "medusa": st.builds(medusa.MedusaConfig, num_drafts=HEADS, proposal=PROPOSALS),
    "medusa tree": st.builds(medusa.MedusaConfig, **TREES),
    "hydra": st.builds(medusa.HydraConfig, num_drafts=HEADS, proposal=PROPOSALS),
    "hydra tree": st.builds(medusa.HydraConfig, **TREES),
    "mtp": st.builds(
        medusa.MtpConfig, num_drafts=FEW, proposal=PROPOSALS, zero_first=st.booleans()
    ),
    "eagle": st.builds(eagle.EagleConfig, proposal=PROPOSALS, **PATHS),
    "eagle2": st.builds(eagle.Eagle2Config, num_drafts=st.integers(1, 12), depth=FEW, top_k=FEW),
    "eagle3": st.builds(eagle.Eagle3Config, proposal=PROPOSALS, **PATHS),
    "eagle3 tree": st.builds(
        eagle.Eagle3Config, num_drafts=st.integers(1, 12), tree=st.just("dynamic"), top_k=FEW
    ),
}
LENGTHS = st.one_of(
    st.builds(lengths.FixedLengthConfig, num=st.sampled_from([None, 0, 2])),
    st.just(lengths.ScheduleConfig(at=((1, 4), (3, 1)))),
    st.just(lengths.EmaConfig(every=1, warmup=0, probe=2, tiers=((1, (0, 1, 4)), (3, (0, 2))))),
    st.just(lengths.GoodputConfig(probe=2)),
    st.builds(lengths.DSparkConfig, probe=st.just(4), search=st.sampled_from(lengths.SEARCHES)),
    st.builds(lengths.ThresholdConfig, least=st.just(0.2), of=st.sampled_from(lengths.OF)),
)
SOMETIMES = {
    "top_k": (1, 5), "top_p": (0.5,), "min_p": (0.02,), "logprobs": (2,),
    "stop_token_ids": ((3, 4), (7,)), "repetition_penalty": (1.4,), "frequency_penalty": (0.5,),
    "banned_token_ids": ((5, 6),), "logit_bias": (((4, 3.0),),), "min_tokens": (1, 2),
    "allowed_token_ids": ((1, 2, 3, 4),), "ignore_eos": (True,), "n": (2,),
}  # fmt: skip


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """Tiny models by kind, with a random head of every kind."""

    @cache
    def model(kind):
        layers = {"gqa": 4, "mla_moe": 2}[kind]
        folder, families = tmp_path_factory.mktemp("every") / kind, model_families()
        write_tiny_checkpoint(folder, kind, families, vocab_size=VOCAB, num_hidden_layers=layers)
        write_tiny_checkpoint(folder / "draft_model", "gqa", families, seed=5, vocab_size=VOCAB)
        write_tiny_eagle(folder / "eagle", folder)
        taps = (1, 2, 3) if layers == 4 else (1,)
        write_tiny_eagle3(folder / "eagle3", folder, ids=taps, draft_vocab=7)
        write(folder / "medusa", MedusaOracle(tokens=VOCAB).tensors("repository"))
        write(folder / "hydra", HydraOracle(tokens=VOCAB).tensors())
        write_mtp(folder / "mtp", folder, layers=layers // 2)
        known = {"vocab_size": VOCAB, "mask_token_id": VOCAB - 1}
        flash = block_tensors(ids=VOCAB, vocab=VOCAB)
        write_block_head(folder / "dflash", flash, block_config(**known))
        spark = block_tensors(markov="rnn", confidence="both", ids=VOCAB, vocab=VOCAB)
        write_block_head(folder / "dspark", spark, block_config(**known, **SPARK))
        return folder

    return model


@st.composite
def compositions(draw, spec):
    size, made = draw(st.sampled_from([1, 4, 16])), draw(spec)
    drawn = getattr(made, "proposal", None) == "sampled"
    rules = ["ratio", "recursive", "block", "target_only"] if drawn else ["target_only", "typical"]
    return dict(
        spec=made,
        verifier=draw(st.sampled_from(rules)),
        length=draw(LENGTHS),
        page_size=size,
        num_pages=-(-LONGEST // size) + draw(st.sampled_from([0, 3])),
        budget_tokens=draw(st.sampled_from([8, 16, 64])),
        index=draw(st.sampled_from(["none", "radix", "block_hash"])),
        chunking=draw(st.sampled_from(["decode_first", "prefill_first"])),
        attention=draw(st.sampled_from(["reference", "auto"])),
        executor=draw(st.sampled_from(["torch", "cuda_graph"])),
        parallel=draw(st.sampled_from(["none", "none", "threads2"])),
    )


@st.composite
def requests(draw):
    """Some share a prefix; some end at once, or by a stop inside what is accepted."""
    found = []
    for index in range(draw(st.integers(1, 5))):
        shared, own = draw(st.tuples(st.integers(0, 30), st.integers(0, 8)))
        text = [2 + (i * i * 5 + i) % 8 for i in range(shared)]
        text += [2 + (index * 3 + i * i) % 8 for i in range(own)] or ([] if shared else [2 + index])
        names = draw(st.sets(st.sampled_from(sorted(SOMETIMES)), max_size=3))
        sampling = {name: draw(st.sampled_from(SOMETIMES[name])) for name in sorted(names)}
        most = draw(st.sampled_from([2, 9, 30, 45]))
        temperature = draw(st.sampled_from([0.0, 0.0, 0.7, 1.3]))
        sampling |= {"temperature": temperature, "seed": draw(st.integers(0, 2))}
        found.append(asking(index, text, most, **sampling))
    return found


@cache
def alone(model, request):
    """Tokens of its samples, in order."""
    found = solo(model, [dataclasses.replace(request, index=0)])
    return [found[(0, sample) if sample else 0] for sample in range(len(found))]


def accepted(model, choices):
    """An engine, or None where the choices do not go together."""
    attention = {"gqa": "gqa", "mla_moe": "mla"}[model.name]
    attention = attention if choices["attention"] == "auto" else choices["attention"]
    try:
        config = configured(model, REGISTRY, **choices | {"attention": attention})
        return build_engine(config, REGISTRY)
    except ConfigError:
        return None


@pytest.mark.parametrize("spec", SPECS)
@given(
    data=st.data(),
    kind=st.sampled_from(["gqa", "gqa", "mla_moe"]),
    wanted=requests(),
    abort=st.one_of(st.none(), st.tuples(st.integers(0, 9), st.integers(0, 4))),
)
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    phases=(Phase.reuse, Phase.generate),  # an example takes too long to be shrunk
)
def test_any_composition_gives_every_request_the_tokens_it_gets_alone(
    model_of, spec, data, kind, wanted, abort
):
    """With target_only all of them, with the other rules greedy ones; nothing stays behind."""
    model, choices = model_of(kind), data.draw(compositions(SPECS[spec]))
    engine = accepted(model, choices)
    assume(engine is not None)
    client = Client(engine)
    client.submit(*wanted)
    aborted = None
    if abort is not None:
        client.step(abort[0])
        aborted = abort[1] % len(wanted)
        client.abort(aborted)
    found = outputs(client.finish(3000))
    engine.close()
    for request in wanted:
        if choices["verifier"] != "target_only" and request.sampling.temperature:
            continue
        for sample, right in enumerate(alone(model, request)):
            key = (request.index, sample) if sample else request.index
            if request.index != aborted:
                assert found[key] == right
            elif key in found:
                assert found[key] == right[: len(found[key])]
    host = engine.core.drafts.host
    for kept in ("_own", "_of"):  # what spec=suffix and spec=lookahead know of requests
        assert not getattr(host, kept, {})
