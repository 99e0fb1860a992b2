"""The frozen target of a drafter: any model that Interlock serves, run by Interlock itself.

Shapes: B windows, T tokens, E hidden size, V vocabulary.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from interlock.conf.find_model import find_model
from interlock.core.assemble import assemble
from interlock.core.checkpoint import describe_model, load_decoder
from interlock.core.model import Decoder, Taps
from interlock.core.model_files import ModelFiles
from interlock.core.parallel import Placement
from interlock.core.registry import load_registry
from interlock.core.request import Request, SamplingParams
from interlock.models.recipe.drafters.dense import dense_attend
from interlock.models.recipe.drafters.facts import TargetFacts

CPU = torch.device("cpu")
REQUESTS = 128
"""That the target writes at once."""
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


@dataclass(frozen=True)
class Answer:
    """Tokens of one answer to `prompt`."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass
class Computed:
    """What one pass over windows gave: see `Window`. `outputs` are those of asked layers."""

    features_BTE: Tensor
    hidden_BTE: Tensor
    best_BT: Tensor
    outputs: dict[int, Tensor] = field(default_factory=dict)


class Target:
    """A model directory or name, described; weights are read when first needed.

    Raises CheckpointError, naming what is wrong, for what Interlock does not serve.
    """

    def __init__(self, name: str, dtype: torch.dtype = torch.float32) -> None:
        self.name = name
        self.dtype = dtype
        registry = load_registry()
        self._families = list(registry.families.values())
        self.files: ModelFiles = find_model(name, list(registry.formats.values()))
        self.description = describe_model(self.files, self._families)
        self.codec = registry.codec(self.files)
        self.loaded: Decoder | None = None
        self.last_layer = self.description.num_layers - 1

    @property
    def directory(self) -> Path:
        """Where what accompanies the model lies."""
        return self.files.directory

    def digest(self) -> str:
        """Of everything that the model computes by: config and weights."""
        whole = hashlib.sha256()
        for path in sorted(self.files.stored()):
            with path.open("rb") as stored:
                whole.update(hashlib.file_digest(stored, "sha256").digest())
        return whole.hexdigest()

    def write(
        self, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams], seed: int
    ) -> Iterator[Answer]:
        """The target's answers, in the order in which they end.

        Raises:
            ValueError: a prompt that the engine refuses; says why.
        """
        engine = assemble([
            f"model={self.name}", f"dtype={str(self.dtype).removeprefix('torch.')}",
            f"seed={seed}", f"threads={torch.get_num_threads()}", "progress=false",
            f"scheduler.max_requests={REQUESTS}",
        ])  # fmt: skip
        for index, (prompt, how) in enumerate(zip(prompts, sampling, strict=True)):
            engine.submit(Request(index, tuple(prompt), how))
        for output in engine.outputs():
            if output.finished is None:
                continue
            if output.finished.error:
                raise ValueError(f"prompt {output.id}: {output.finished.error}")
            yield Answer(tuple(prompts[output.id]), tuple(output.finished.output_token_ids))

    @torch.no_grad()
    def compute(self, ids_BT: Tensor, layers: Sequence[int] = ()) -> Computed:
        """One dense pass in the dtype that was asked for."""
        windows, tokens = ids_BT.shape
        positions_T = torch.arange(tokens).repeat(windows)
        taps = Taps((self.last_layer, *layers))
        decoder = self._decoder()
        features_TE = decoder.forward(ids_BT.flatten(), positions_T, dense_attend(windows), taps)
        best_T = decoder.logits(features_TE).argmax(-1)

        def windowed(x: Tensor) -> Tensor:
            return x.unflatten(0, (windows, tokens))

        hidden_BTE, *outputs = (windowed(x) for x in taps.outputs())
        return Computed(
            windowed(features_TE),
            hidden_BTE,
            windowed(best_T),
            dict(zip(layers, outputs, strict=True)),
        )

    def facts(self, counts_V: Tensor) -> TargetFacts:
        """See `TargetFacts`."""
        described = self.description
        config, spec = described.config, described.attention[0]
        stored = self.files.weights()

        def read(name: str) -> Tensor:
            shape = stored.shape(name)
            assert shape is not None  # loading the decoder refused a checkpoint without it
            return stored.read(name, shape, torch.float32, CPU)[: described.vocab_size]

        embed_VE = read(EMBEDDING)
        tied = bool(config.get("tie_word_embeddings")) or not stored.has(HEAD)
        heads = spec.num_heads
        latent = spec.form == "latent"
        return TargetFacts(
            config=config,
            hidden=described.hidden_size,
            vocab_size=described.vocab_size,
            layers=described.num_layers,
            heads=heads,
            kv_heads=max(1, heads // 2) if latent else spec.num_kv_heads,
            head_dim=spec.v_head_dim if latent else spec.head_dim,
            intermediate=config["intermediate_size"],
            norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=_rope_theta(config),
            max_positions=described.max_positions,
            embed_VE=embed_VE,
            head_VE=embed_VE if tied else read(HEAD),
            norm_E=read(NORM),
            counts_V=counts_V,
        )

    def _decoder(self) -> Decoder:
        if self.loaded is None:
            placement = Placement(self.dtype, CPU)
            self.loaded = load_decoder(self.description, self._families, placement)
        return self.loaded


def _rope_theta(config: "dict[str, object]") -> float:
    nested = config.get("rope_parameters")
    stated = nested.get("rope_theta") if isinstance(nested, dict) else None
    return float(config.get("rope_theta") or stated or 10000.0)  # type: ignore[arg-type]
