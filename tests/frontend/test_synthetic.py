from dataclasses import replace

import numpy as np
import pytest

from interlock.conf.check_sampling import sampling_problems
from interlock.core.errors import ConfigError, WorkloadError
from interlock.core.request import Request
from interlock.core.testing.workload_contract import byte_context
from interlock.plugins.frontend.arrivals import arrival_times, stream
from interlock.plugins.frontend.configs import SyntheticConfig
from interlock.plugins.frontend.synthetic import Synthetic

NO_PREFIX = {"prefix_tokens": 0}


def made(context=None, **options) -> list[Request]:
    return Synthetic(SyntheticConfig(**options)).requests(context or byte_context(0, 100_000))


def with_text(folder, text: str, max_positions: int = 4096):
    (folder / "held_out.txt").write_text(text)
    context = byte_context(max_positions=max_positions)
    return replace(context, model=replace(context.model, directory=folder))


@pytest.mark.parametrize("max_positions", [2, 3, 40, 300])
@pytest.mark.parametrize("turns", [1, 4])
def test_prompt_and_output_fit_the_model(max_positions, turns):
    requests = made(byte_context(0, max_positions), turns=turns, num_requests=40)
    assert len(requests) == 40
    for request in requests:
        assert request.num_prompt_tokens >= 1
        assert sampling_problems(request.sampling, 256) == []
        assert request.num_prompt_tokens + request.sampling.max_tokens <= max_positions


def test_a_model_of_one_position_is_refused():
    with pytest.raises(WorkloadError, match="max_positions=1"):
        made(byte_context(0, 1))


def test_constant_lengths_are_exact_and_prefixes_come_on_top():
    options = {"prompt_lengths": "constant", "output_lengths": "constant"}
    requests = made(prompt_tokens=10, output_tokens=5, prefix_tokens=7, prefix_share=1.0, **options)
    assert {r.num_prompt_tokens for r in requests} == {17}
    assert {r.sampling.max_tokens for r in requests} == {5}
    assert all(r.sampling.ignore_eos for r in requests)


@pytest.mark.parametrize(("law", "std"), [("uniform", 30 / np.sqrt(3)), ("lognormal", 30)])
def test_drawn_lengths_have_the_mean_and_spread_of_their_law(law, std):
    requests = made(
        num_requests=3000, prompt_lengths=law, prompt_tokens=100, prompt_spread=0.3, **NO_PREFIX
    )
    lengths = np.array([r.num_prompt_tokens for r in requests])
    assert lengths.mean() == pytest.approx(100, rel=0.03)
    assert lengths.std() == pytest.approx(std, rel=0.06)
    if law == "uniform":
        assert (lengths.min(), lengths.max()) == (70, 130)


def test_the_stated_share_of_requests_starts_with_one_of_the_prefixes():
    requests = made(num_requests=1000, prefixes=4, prefix_tokens=20, prefix_share=0.6)
    starts = [r.prompt_token_ids[:20] for r in requests]
    common = {s for s in starts if starts.count(s) > 1}
    assert len(common) == 4
    assert sum(s in common for s in starts) == pytest.approx(600, abs=50)


def test_a_later_turn_continues_the_former_prompt_and_answer():
    requests = made(num_requests=6, turns=3, think_s=2.0, arrivals="constant", rate=0.1)
    for first, second in ((0, 1), (1, 2), (3, 4)):
        before, after = requests[first], requests[second]
        length = before.num_prompt_tokens
        assert after.prompt_token_ids[:length] == before.prompt_token_ids
        assert after.num_prompt_tokens > length + before.sampling.max_tokens
        assert after.arrival_s == pytest.approx(before.arrival_s + 2)
    assert requests[3].arrival_s == pytest.approx(10)


def test_requests_are_in_order_of_arrival():
    times = [r.arrival_s for r in made(turns=5, num_requests=50, rate=2.0)]
    assert times == sorted(times)


def test_arrivals_have_the_rate_and_variation_of_their_process():
    for process, burstiness, variation in (
        ("constant", 1.0, 0.0),
        ("poisson", 1.0, 1.0),
        ("gamma", 4.0, 0.5),
        ("gamma", 0.25, 2.0),
    ):
        gaps = np.diff(arrival_times(process, 20_000, 5.0, burstiness, stream(0, 0)))
        assert gaps.mean() == pytest.approx(0.2, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.06, abs=1e-6)
    assert not arrival_times("at_once", 5, 1.0, 1.0, stream(0, 0)).any()


def test_changing_the_arrivals_leaves_the_prompts_alone():
    def prompts(**options):
        return [r.prompt_token_ids for r in made(**options)]

    assert prompts() == prompts(arrivals="gamma", burstiness=0.5) == prompts(rate=1.0)


def test_prompts_are_pieces_of_the_held_out_text(tmp_path):
    text = "".join(f"line number {i} of the text\n" for i in range(200))
    requests = made(with_text(tmp_path, text), prefixes=0, num_requests=10)
    for request in requests:
        piece = bytes(request.prompt_token_ids).decode()
        assert piece.startswith("line number")
        assert piece in text + text


def test_the_opening_token_comes_once(tmp_path):
    context = with_text(tmp_path, "abc\n" * 100)
    context = replace(context, encode=lambda text: [1, *text.encode()])
    for request in made(context, prefix_share=1.0, turns=2):
        assert request.prompt_token_ids[0] == 1
        assert 1 not in request.prompt_token_ids[1:]


def test_a_text_shorter_than_a_prompt_is_repeated(tmp_path):
    requests = made(with_text(tmp_path, "ab"), prompt_tokens=50, **NO_PREFIX)
    assert all(set(r.prompt_token_ids) == set(b"ab") for r in requests)


def test_random_ids_are_used_where_there_is_no_text_and_text_can_be_demanded(tmp_path):
    assert len(made()) == 24
    with pytest.raises(WorkloadError, match=r"model 'bytes' has no held_out\.txt"):
        made(source="text")
    with pytest.raises(WorkloadError, match="has no tokenizer"):
        made(replace(with_text(tmp_path, "ab"), encode=None), source="text")
    with pytest.raises(WorkloadError, match="the text is empty"):
        made(with_text(tmp_path, " \n"))
    ids = {t for r in made(with_text(tmp_path, "ab"), source="random") for t in r.prompt_token_ids}
    assert len(ids) > 200


def test_options_out_of_range_are_all_named():
    with pytest.raises(ConfigError) as caught:
        made(num_requests=0, arrivals="poison", prefix_share=1.5, burstiness=0)
    assert caught.value.problems == [
        "num_requests=0 is not at least 1",
        "no arrivals named 'poison'; did you mean 'poisson'? "
        "known: at_once, constant, gamma, poisson",
        "prefix_share=1.5 is not from 0 to 1",
        "burstiness=0 is not a finite number above 0",
    ]
