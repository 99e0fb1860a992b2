"""Nothing between prompt and token narrows fp64: the ways to do so raise while an engine runs."""

import pytest
import torch

from interlock.core.assemble import assemble
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams, Status
from interlock.core.testing.tiny import write_tiny_checkpoint
from interlock.core.testing.tiny_eagle import write_tiny_eagle

NARROW = {torch.float32, torch.float16, torch.bfloat16}


def narrows(tensor, *arguments, **options):
    asked = [*arguments, *options.values()]
    wanted = {a for a in asked if isinstance(a, torch.dtype)}
    wanted |= {a.dtype for a in asked if isinstance(a, torch.Tensor)}
    return tensor.dtype == torch.float64 and wanted & NARROW


@pytest.fixture
def no_narrowing(monkeypatch):
    for name in ("float", "half", "bfloat16"):

        def refuse(tensor, name=name, **_):
            if tensor.dtype == torch.float64:
                raise AssertionError(f"float64 tensor narrowed by .{name}()")
            return tensor.to(getattr(torch, name))

        monkeypatch.setattr(torch.Tensor, name, refuse)
    for name in ("to", "type"):
        original = getattr(torch.Tensor, name)

        def checked(tensor, *arguments, original=original, **options):
            assert not narrows(tensor, *arguments, **options), "float64 tensor narrowed"
            return original(tensor, *arguments, **options)

        monkeypatch.setattr(torch.Tensor, name, checked)


@pytest.mark.parametrize(
    ("kind", "attention", "numerics"),
    [("gqa", "gqa", "fast"), ("gqa", "reference", "fast"), ("mla_moe", "mla", "fast"),
     ("hybrid", "gqa", "fast"), ("caps", "gqa", "fast"), ("caps", "reference", "fast"),
     ("sinks", "gqa", "fast"), ("sinks", "reference", "fast"),
     ("mla_moe", "mla", "batch_invariant"), ("sinks", "gqa", "batch_invariant")],
)  # fmt: skip
def test_an_engine_in_fp64_never_narrows(kind, attention, numerics, tmp_path, request):
    families = list(load_registry().families.values())
    model = write_tiny_checkpoint(tmp_path / kind, kind, families)
    write_tiny_eagle(model / "eagle", model)
    request.getfixturevalue("no_narrowing")
    engine = assemble(
        [f"model={model}", "dtype=float64", f"attention={attention}", f"numerics={numerics}",
         "spec=eagle", "threads=1"]
    )  # fmt: skip
    assert engine.planes is not None
    stored = {t.dtype for planes in engine.planes.of_layer.values() for t in planes.values()}
    assert stored == {torch.float64}
    mixed = [
        SamplingParams(max_tokens=6, logprobs=2),
        SamplingParams(max_tokens=6, temperature=0.8, top_k=9, top_p=0.9, min_p=0.01),
    ]
    for index, sampling in enumerate(mixed):
        engine.submit(Request(index, tuple(range(3, 20)), sampling))
    ended = [output.finished for output in engine.outputs() if output.finished]
    assert [record.status for record in ended] == [Status.FINISHED] * 2, ended


def test_the_guard_catches_what_it_should(no_narrowing):
    wide = torch.ones(2, dtype=torch.float64)
    for narrow in (
        wide.float,
        wide.half,
        lambda: wide.to(torch.float32),
        lambda: wide.type(torch.half),
    ):
        with pytest.raises(AssertionError, match="narrowed"):
            narrow()
    assert torch.ones(2).half().dtype == torch.float16
