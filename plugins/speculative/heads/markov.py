"""DSpark's light heads: a bias from the token before, and an estimate of acceptance.

    vanilla  W2 W1[x]
    gated    W2 (sigmoid(gate_proj [out; W1[x]]) * W1[x])
    rnn      [g, c, o] = joint_proj [s; W1[x]; out];  s <- sigmoid(g) s + (1 - sigmoid(g)) tanh(c);
             W2 tanh(o)
    confidence  sigmoid(w [out; W1[x]] + b)

x is the token before the candidate (the anchor, or the candidate before), `out` the row that
predicts it, so nothing here depends on the candidate itself (arXiv 2607.05147, section 3).
Legend: R requests, E hidden size, M rank, V vocabulary, D ids that the head knows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from interlock.plugins.speculative.heads.fields import Fields
from interlock.plugins.speculative.heads.layer import Taker

KINDS = ("vanilla", "gated", "rnn")
CONFIDENCE = "confidence_head.proj"


@dataclass(frozen=True)
class MarkovShape:
    """`rank` 0: no Markov head. `rated`: there is a confidence head; `reads_token`: of W1[x]."""

    kind: str
    rank: int
    rated: bool
    reads_token: bool


def read_markov(fields: Fields, source: Taker) -> MarkovShape:
    """What the config says; where it says nothing of the confidence head, what is stored."""
    rank = fields.integer("markov_rank", 0, least=0)
    kind = fields.config.get("markov_head_type", "vanilla")
    if kind not in KINDS:
        fields.problems.append(f"markov_head_type={kind!r} is not one of {', '.join(KINDS)}")
    stored = source.weights.shape(f"{CONFIDENCE}.weight")
    said = "enable_confidence_head" in fields.config or "use_confidence_head" not in fields.config
    key = "enable_confidence_head" if said else "use_confidence_head"
    rated = fields.flag(key, stored is not None)
    wide = stored is not None and rank > 0 and stored[-1] > fields.integer("hidden_size")
    reads_token = rated and fields.flag("confidence_head_with_markov", wide)
    if reads_token and not rank:
        fields.problems.append("confidence_head_with_markov=True needs a markov_rank above 0")
    return MarkovShape(kind, rank, rated, reads_token)


class MarkovHeads:
    """Both heads. Takes its tensors from `source`."""

    def __init__(
        self, shape: MarkovShape, hidden: int, vocab_size: int, ids: int, source: Taker
    ) -> None:
        self.shape, rank, under = shape, shape.rank, source.under("markov_head.")
        self._w1 = self._w2 = self._inner = self._rating = None
        if rank:
            self._w1 = under.take("markov_w1", vocab_size, rank)
            self._w2 = under.take("markov_w2", ids, rank)
        if rank and shape.kind == "gated":
            self._inner = _affine(under, "gate_proj", rank, hidden + rank)
        if rank and shape.kind == "rnn":
            self._inner = _affine(under, "joint_proj", 3 * rank, 2 * rank + hidden)
        if shape.rated:
            self._rating = _affine(source, CONFIDENCE, 1, hidden + rank * shape.reads_token)

    def begin(self, out_RE: Tensor) -> Tensor:
        """[R, M]: the state before a block's first candidate."""
        return out_RE.new_zeros(len(out_RE), self.shape.rank)

    def embedded(self, tokens_R: Tensor, out_RE: Tensor) -> Tensor:
        """[R, M]: W1 of the tokens before (nothing without a Markov head)."""
        return self.begin(out_RE) if self._w1 is None else F.embedding(tokens_R, self._w1)

    def bias(
        self, embedded_RM: Tensor, out_RE: Tensor, state_RM: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """[R, D] to add to the next candidates' logits (None: nothing), and the next state."""
        if self._w2 is None:
            return None, state_RM
        latent_RM = embedded_RM
        if self.shape.kind == "gated":
            gate_RM = _apply(self._inner, torch.cat([out_RE, embedded_RM], dim=-1)).sigmoid()
            latent_RM = gate_RM * embedded_RM
        if self.shape.kind == "rnn":
            joint = _apply(self._inner, torch.cat([state_RM, embedded_RM, out_RE], dim=-1))
            gate_RM, new_RM, latent_RM = joint.chunk(3, dim=-1)
            gate_RM, latent_RM = gate_RM.sigmoid(), latent_RM.tanh()
            state_RM = gate_RM * state_RM + (1 - gate_RM) * new_RM.tanh()
        return F.linear(latent_RM, self._w2), state_RM

    def confidence(self, embedded_RM: Tensor, out_RE: Tensor) -> Tensor | None:
        """[R]: the chance that the next candidate is accepted; None without a confidence head."""
        if self._rating is None:
            return None
        read = torch.cat([out_RE, embedded_RM], dim=-1) if self.shape.reads_token else out_RE
        logit_R = _apply(self._rating, read).squeeze(-1)
        return logit_R.to(torch.promote_types(logit_R.dtype, torch.float32)).sigmoid()


Affine = tuple[Tensor, Tensor]


def _affine(source: Taker, name: str, outputs: int, inputs: int) -> Affine:
    weight = source.take(name, outputs, inputs)
    full = f"{source.prefix}{name}.bias"
    return weight, source.weights.take(full, (outputs,), source.dtype, source.device)


def _apply(affine: Affine | None, x: Tensor) -> Tensor:
    assert affine is not None
    return F.linear(x, *affine)
