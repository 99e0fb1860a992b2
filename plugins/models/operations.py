"""The operations of a decoder's layers, for heads that are no decoder."""

from torch import Tensor

from interlock.core.operations import Operations, Product
from interlock.core.parallel import Placement
from interlock.plugins.models.native.rows import native_rows
from interlock.plugins.models.products import make_product
from interlock.plugins.models.row_tiles import FAST, TILED


class LayerOperations(Operations):
    """As compiled and packed as the layers of a model with the same placement, but never split."""

    def __init__(self, placement: Placement) -> None:
        fast = placement.numerics == FAST.numerics
        self._rows = native_rows(placement.dtype, placement.device) if fast else TILED

    def product(self, weight_FE: Tensor, bias_F: Tensor | None = None) -> Product:
        """See Operations."""
        return make_product(weight_FE, bias_F, self._rows)

    def norm(self, x: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        """See Operations."""
        return self._rows.norm(x, weight_E, eps)

    def swiglu(self, gate_up_TF: Tensor) -> Tensor:
        """See Operations."""
        return self._rows.swiglu(gate_up_TF)

    def rotate(self, x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
        """See Operations."""
        return self._rows.rotate(x_THD, cos_T1D, sin_T1D)
