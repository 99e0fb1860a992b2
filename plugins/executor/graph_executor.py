"""The executor that pads decode and verification steps to few shapes, captured once each.

Legend: T tokens, E hidden size.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from interlock.core.attention import AttentionBatch
from interlock.core.batch import Batch
from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.executor import ModelParts
from interlock.core.planes import make_attend, make_attention_batch
from interlock.plugins.executor import GraphConfig
from interlock.plugins.executor.batches import tree_masks
from interlock.plugins.executor.buckets import Bucket, Buckets, Padded, empty, padded, row_counts
from interlock.plugins.executor.recorded import CudaGraphs, EagerReplay, Recorded
from interlock.plugins.executor.torch_executor import Passed, TorchExecutor


class GraphExecutor(TorchExecutor):
    """Runs the target pass of steps with few tokens a row padded to a bucket, and replays it.

    Everything else (prefill, steps with prompts in them, rows with an adapter, drafters' passes,
    verification) runs as with executor=torch. A shape is recorded when it first occurs, or
    (`capture` "start") before the first step. Without CUDA nothing is captured: the same padded
    steps run eagerly.
    """

    def __init__(self, parts: ModelParts, config: GraphConfig) -> None:
        super().__init__(parts)
        self._buckets = Buckets(
            config.rows or row_counts(parts.max_requests),
            parts.num_drafts,
            parts.max_tokens,
            parts.planes.page_size,
        )
        self._graphs: CudaGraphs | EagerReplay = EagerReplay()
        if self._device.type == "cuda":
            self._graphs = CudaGraphs(self._device)
            if not self._backend.capturable:
                raise ConfigError(
                    f"executor=cuda_graph: {type(self._backend).__name__} has no plans that can be "
                    "captured; set executor=torch"
                )
            if not getattr(self._decoder, "capturable", True):
                raise ConfigError(
                    f"executor=cuda_graph: experts of model {self._decoder.description.name} run "
                    "one by one, which reads from the device how many tokens each has (all in one "
                    "launch: the package triton, a dtype other than float64, no adapters); set "
                    "executor=torch"
                )
        self._recorded: dict[tuple[Bucket, Hashable], Recorded] = {}
        self._replayed: Counter[str] = Counter()
        self._eager: Counter[str] = Counter()
        if config.capture == "start":
            self._record_all()

    @torch.inference_mode()
    def _record_all(self) -> None:
        for bucket in self._buckets.all():
            self._run(empty(len(self._planes.scratch), self._planes.page_size), bucket)

    def facts(self) -> dict[str, Any]:
        """Steps replayed in each shape, and steps that ran eagerly, by reason."""
        return {
            "mode": self._graphs.mode,
            "recorded_shapes": len(self._recorded),
            "replayed_steps": dict(self._replayed),
            "eager_steps": dict(self._eager),
        }

    def _target(self, batch: Batch) -> Passed:
        """See TorchExecutor."""
        bucket = self._buckets.fit(batch)
        if isinstance(bucket, str):
            self._eager[bucket] += 1
            return super()._target(batch)
        self._replayed[str(bucket)] += 1
        features_TE, *taps = (x_TE[: batch.num_tokens] for x_TE in self._run(batch, bucket))
        return Passed(features_TE, tuple(taps), bucket.tokens - batch.num_tokens)

    def _run(self, batch: Batch, bucket: Bucket) -> tuple[Tensor, ...]:
        """Features of every token of the padded step [T, E], then what the drafter taps.

        They stand until the next step runs.
        """
        filled = padded(batch, bucket, self._planes.scratch)
        tokens_T = torch.from_numpy(filled.tokens_T).to(self._device)
        view = self._view(batch, filled)
        plan = self._backend.plan(view)
        attend = make_attend(self._backend, plan, self._planes)

        def run() -> tuple[Tensor, ...]:
            taps = self._taps()
            features_TE = self._decoder.forward(tokens_T, view.positions_T, attend, taps)
            return features_TE, *taps.outputs()

        if not self._backend.capturable:
            return run()
        tensors = (tokens_T, view.positions_T, *plan.tensors)
        key = bucket, plan.shape_key
        if key not in self._recorded:
            self._recorded[key] = self._graphs.record(run, tensors, str(bucket))
        return self._recorded[key].replay(tensors)

    def _view(self, batch: Batch, filled: Padded) -> AttentionBatch:
        return make_attention_batch(
            row_offsets=filled.row_offsets.tolist(),
            starts=filled.starts_R.tolist(),
            positions=filled.positions_T.tolist(),
            page_tables=tuple(
                torch.from_numpy(table.astype("int64")).to(self._device)
                for table in filled.tables_RP
            ),
            page_size=batch.page_size,
            tree_masks=tree_masks(batch, self._device),
            device=self._device,
        )


def build(config: GraphConfig, context: BuildContext) -> GraphExecutor:
    """See Component."""
    assert context.parts is not None, "the cuda_graph executor needs a model"
    return GraphExecutor(context.parts, config)
