"""Published numberings of layers and positions, turned into ours. No torch.

Inside, a tap is a 0-based layer of the target whose output is read. Checkpoints count in two ways:

- outputs: id i is the output of layer i (z-lab/dflash, DeepSpec, SpecForge: `target_layer_ids`);
- inputs: id i is Hugging Face's `hidden_states[i]`, the output of layer i - 1 (SafeAILab/EAGLE,
  vLLM, speculators: `eagle_aux_hidden_state_layer_ids`, `aux_hidden_state_layer_ids`).

The last layer is no tap in either: Hugging Face stores its output after the final norm, so a head
that was trained on it read something else than the layer's output.
"""

from collections.abc import Sequence


def taps_of_outputs(ids: Sequence[int], num_layers: int, key: str) -> tuple[int, ...]:
    """Taps of ids that are outputs (z-lab, DeepSpec, SpecForge); ValueError that names `key`."""
    return _taps(ids, 0, num_layers, key)


def taps_of_inputs(ids: Sequence[int], num_layers: int, key: str) -> tuple[int, ...]:
    """Taps of ids that are inputs (EAGLE-3, vLLM, speculators); ValueError that names `key`."""
    return _taps(ids, 1, num_layers, key)


def eagle3_taps(num_layers: int) -> tuple[int, ...]:
    """Taps of an EAGLE-3 head that names none: inputs 2, n // 2 and n - 3 (SafeAILab, vLLM)."""
    return taps_of_inputs((2, num_layers // 2, num_layers - 3), num_layers, "the default taps")


def spread_taps(count: int, num_layers: int) -> tuple[int, ...]:
    """Taps of a block drafter that names none: `count` outputs from layer 1 to n - 3 (z-lab)."""
    if count == 1:
        return (num_layers // 2,)
    step = (num_layers - 4) / (count - 1)
    ids = [round(1 + step * place) for place in range(count)]
    return taps_of_outputs(ids, num_layers, "the default taps")


def pair_position(end: int, depth: int) -> int:
    """Rotary position of the drafted row that brings the candidate at `depth` (1: the first).

    Shifted-pair drafters (EAGLE, MTP): the row of position p holds the token at p + 1 and predicts
    the one at p + 2. `end` rows are committed, the last of them with the anchor; candidate 1 comes
    after the anchor.
    """
    return end + depth - 1


def _taps(ids: Sequence[int], first: int, num_layers: int, key: str) -> tuple[int, ...]:
    last = num_layers - 2 + first
    bad = [i for i in ids if type(i) is not int or not first <= i <= last]
    if bad or not ids or len(set(ids)) != len(ids):
        raise ValueError(
            f"{key}={list(ids)!r} are not different layers from {first} to {last} "
            f"(the target has {num_layers} layers, and the last one's output is not a tap)"
        )
    return tuple(i - first for i in ids)
