"""The floor of decode at batch 1: nothing but a product with every weight of the checkpoint."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from interlock.plugins.models.products import PackedProduct, can_pack


class PlainSide:
    """Matrices [out, in] of a checkpoint, multiplied by a vector in turn; no layers between."""

    def __init__(self, model: str, dtype: str, threads: int, options: Sequence[str]) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        tensors = load_file(Path(model) / "model.safetensors")
        tied = "lm_head.weight" not in tensors
        self.matrices = [
            values.clone()  # out of the mapped file, as an engine's weights are
            for name, values in tensors.items()
            if values.ndim == 2 and (tied or "embed_tokens" not in name)
        ]
        self.vectors = {
            width: torch.randn(1, width).to(self.matrices[0].dtype)
            for width in {matrix.shape[1] for matrix in self.matrices}
        }
        self.products: dict[str, Callable[[], None]] = {
            "torch.mv": self._mv,
            "linear": self._linear,
        }
        if can_pack(self.matrices[0].dtype):
            self.packed = [
                (PackedProduct(matrix, None), self.vectors[matrix.shape[1]])
                for matrix in self.matrices
            ]
            self.products["packed weights"] = self._packed

    def facts(self) -> dict[str, Any]:
        """What is multiplied."""
        return {"bytes": sum(m.nbytes for m in self.matrices), "torch": torch.__version__}

    def kinds(self) -> list[str]:
        """The products that are known."""
        return list(self.products)

    def product(self, kind: str, times: int) -> float:
        """Seconds of `times` passes over all bytes."""
        run = self.products[kind]
        start_s = time.perf_counter()
        for _ in range(times):
            run()
        return time.perf_counter() - start_s

    def _mv(self) -> None:
        for matrix in self.matrices:
            torch.mv(matrix, self.vectors[matrix.shape[1]][0])

    def _linear(self) -> None:
        for matrix in self.matrices:
            torch.nn.functional.linear(self.vectors[matrix.shape[1]], matrix)

    def _packed(self) -> None:
        for product, x_1E in self.packed:
            product(x_1E)
