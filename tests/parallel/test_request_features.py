"""What a request may ask for is the same on ranks: everything about tokens is decided on one."""

import pytest

from interlock.core.registry import load_registry
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle
from tests.engine.serving import asking, build, outputs, serve
from tests.parallel.threads import with_threads

ASKED = {
    "samples": {"n": 3, "temperature": 1.0, "seed": 4},
    "prompt laws": {"prompt_logprobs": 2, "logprobs": 3},
    "a regular expression": {"regex": "[a-f]{4}(xy)*!", "temperature": 1.5, "seed": 1},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "min_tokens": 6},
    "stop strings": {"stop": ("e", "a"), "temperature": 1.0, "seed": 2},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    families = list(load_registry().families.values())
    folder = tmp_path_factory.mktemp("model")
    model = write_tiny_checkpoint(folder, "gqa", families, tokenizer=True)
    write_tiny_eagle(model / "eagle", model)
    return model


@pytest.mark.parametrize("parallel", ["threads2", "threads4"])
def test_every_request_feature_gives_what_one_process_gives(model, parallel):
    asked = [asking(i, 9 + 5 * i, 12, **sampling) for i, sampling in enumerate(ASKED.values())]
    settings = {"spec": "eagle", "structured": "xgrammar", "budget_tokens": 16}
    plain = serve(build(model, **settings), *asked)
    engine = build(model, with_threads(), parallel=parallel, **settings)
    split = serve(engine, *asked)
    engine.close()
    assert not [record.error for record in plain.values() if record.error]
    assert outputs(split) == outputs(plain)
    for key, record in plain.items():
        assert split[key].finish_reason == record.finish_reason
        assert split[key].text == record.text
        for one, other in zip(
            record.prompt_logprobs[1:], split[key].prompt_logprobs[1:], strict=True
        ):
            assert one.chosen == pytest.approx(other.chosen, abs=1e-9)
