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

from interlock.core.operations import Product
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
        self._w1: Tensor | None = None
        self._w2: Product | None = None
        self._inner: Product | None = None
        self._rating: Product | None = None
        if rank:
            self._w1 = under.take("markov_w1", vocab_size, rank)
            self._w2 = under.product(rank, {"markov_w2": ids})
        if rank and shape.kind == "gated":
            self._inner = under.product(hidden + rank, {"gate_proj": rank}, biased=True)
        if rank and shape.kind == "rnn":
            joint = {"joint_proj": 3 * rank}
            self._inner = under.product(2 * rank + hidden, joint, biased=True)
        if shape.rated:
            inputs = hidden + rank * shape.reads_token
            self._rating = source.product(inputs, {CONFIDENCE: 1}, biased=True)

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
        latent_RM, inner = embedded_RM, self._inner
        if inner is not None and self.shape.kind == "gated":
            gate_RM = inner(torch.cat([out_RE, embedded_RM], dim=-1)).sigmoid()
            latent_RM = gate_RM * embedded_RM
        if inner is not None and self.shape.kind == "rnn":
            joint = inner(torch.cat([state_RM, embedded_RM, out_RE], dim=-1))
            gate_RM, new_RM, latent_RM = joint.chunk(3, dim=-1)
            gate_RM, latent_RM = gate_RM.sigmoid(), latent_RM.tanh()
            state_RM = gate_RM * state_RM + (1 - gate_RM) * new_RM.tanh()
        return self._w2(latent_RM), state_RM

    def confidence(self, embedded_RM: Tensor, out_RE: Tensor) -> Tensor | None:
        """[R]: the chance that the next candidate is accepted; None without a confidence head."""
        if self._rating is None:
            return None
        read = torch.cat([out_RE, embedded_RM], dim=-1) if self.shape.reads_token else out_RE
        logit_R = self._rating(read).squeeze(-1)
        return logit_R.to(torch.promote_types(logit_R.dtype, torch.float32)).sigmoid()
