"""What a composition that changes its model's output costs, against whole passes of the model."""

import math
from pathlib import Path

import pytest
import torch

from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.checkpoint import load_decoder
from interlock.core.errors import InterlockError
from interlock.core.model import Placement
from interlock.core.registry import load_registry
from interlock.core.testing.tiny import dense_attend
from interlock.study import quality
from interlock.study.folder import StudyFolder
from interlock.study.quality import CHOICES, CONTEXT, CONTINUATION, measure_quality
from interlock.study.read_study import read_study
from interlock.study.run_study import run_study

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-3
"""fp32 in batches against one whole pass in fp32, relative, over 24 tokens."""


def logprobs(decoder, attend, tokens):
    """Of every token but the first, from one pass without a cache."""
    with torch.no_grad():
        features = decoder.forward(torch.tensor(tokens), torch.arange(len(tokens)), attend)
        laws = decoder.logits(features).double().log_softmax(-1)
    return [laws[at, token].item() for at, token in enumerate(tokens[1:])]


def test_the_figures_are_those_of_whole_passes_over_the_held_out_text(monkeypatch):
    monkeypatch.setattr(quality, "WINDOWS", 5)
    registry = load_registry()
    config = compose(["model=tiny-gqa", "threads=1"], registry)
    found = measure_quality(config, registry)
    engine = build_engine(config, registry)
    windows = quality._windows(engine)
    model = engine.resolution.model
    placement = Placement(torch.float32, torch.device("cpu"))
    decoder = load_decoder(model, list(registry.families.values()), placement)
    attend = dense_attend(model)
    whole = [logprobs(decoder, attend, window) for window in windows]
    right = 0
    for at, window in enumerate(windows):
        rivals = [windows[(at + step) % 5][CONTEXT:] for step in range(1, CHOICES)]
        sums = [math.fsum(logprobs(decoder, attend, window[:CONTEXT] + rival)[-CONTINUATION:])
                for rival in rivals]  # fmt: skip
        right += math.fsum(whole[at][-CONTINUATION:]) > max(sums)
    mean = math.fsum(math.fsum(one) for one in whole) / sum(map(len, whole))
    assert found["perplexity"] == pytest.approx(math.exp(-mean), rel=TOLERANCE)
    assert found["choice_accuracy"] == right / 5
    assert 1 < found["output_perplexity"] < found["perplexity"], "greedy text is likelier"


def test_a_model_without_held_out_text_is_refused_with_what_it_lacks(tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(ROOT / "models" / "tiny-gqa" / name)
    config = compose([f"model={tmp_path}", "threads=1"])
    with pytest.raises(InterlockError, match=r"has no held_out.txt beside its weights: quality is"):
        measure_quality(config, load_registry())


STUDY = """
base: [model=tiny-gqa, threads=1, workload.num_requests=1, workload.output_tokens=4, spec=ngram]
factors:
  verifier: {exact: [], typical: [spec/verifier=typical]}
  page: {usual: [], small: [cache.page_size=8]}
design: one_at_a_time
repeats: 1
warmup_runs: 0
metrics: [mean_ttft_ms]
"""


def test_a_study_measures_the_quality_of_lossy_cells_and_of_the_baseline_once(tmp_path, worker):
    (tmp_path / "mine.yaml").write_text(STUDY)
    study = read_study(tmp_path / "mine.yaml", load_registry())
    folder = StudyFolder(tmp_path / "out")
    seen = run_study(study, folder, load_registry(), workers=[worker])
    assert not [one.failure for one in seen if one.failure]
    lossy, exact = "verifier=typical,page=usual", "verifier=exact,page=usual"
    assert folder.manifest()["lossy"] == [lossy]
    measured = {(one.cell, one.replica): one.quality for one in seen if one.quality}
    assert set(measured) == {(lossy, 0), (exact, 0)}
    keys = {"perplexity", "choice_accuracy", "output_perplexity"}
    assert {key for of in measured.values() for key in of} == keys
    assert measured[lossy, 0]["perplexity"] == pytest.approx(measured[exact, 0]["perplexity"])
    assert measured[exact, 0]["choice_accuracy"] > 1 / CHOICES
    shares = {one.cell: one.equal_tokens for one in seen if one.replica == 0}
    assert shares[exact] == shares["verifier=exact,page=small"] == 1.0
    assert 0.0 <= shares[lossy] <= 1.0
