"""Random MTP layers: their files in the published layouts, and dense fp64 rows and drafts.

The decoder layer itself is computed by transformers' eager Llama or DeepSeek-V3 layer, the rest in
plain torch from arXiv 2412.19437, section 2.2; nothing is shared with the drafter.
"""

import json

import torch
import transformers
from safetensors.torch import load_file, save_file

AROUND = ("enorm", "hnorm", "eh_proj", "shared_head.norm")


def write_mtp(directory, model, layers=1, layout="deepseek", inside=False, seed=5):
    """Random MTP layers for the model directory `model`; `inside`: added to its checkpoint.

    `layout` deepseek, qwen or export (numbered from 0). Returns tensors by our own names.
    """
    config = json.loads((model / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    hidden, number = config["hidden_size"], config["num_hidden_layers"]
    like = f"model.layers.{number - 1}."
    stored = load_file(model / "model.safetensors")
    shapes = {n.removeprefix(like): x.shape for n, x in stored.items() if n.startswith(like)}
    shapes |= {"enorm.weight": (hidden,), "hnorm.weight": (hidden,)}
    shapes |= {"eh_proj.weight": (hidden, 2 * hidden), "shared_head.norm.weight": (hidden,)}
    ours = [
        {name: _draw(shape, generator) for name, shape in shapes.items()} for _ in range(layers)
    ]
    if layout == "qwen":  # everything around the layers is shared
        for one in ours[1:]:
            one.update({f"{name}.weight": ours[0][f"{name}.weight"] for name in AROUND})
    files = {
        stored_name(layout, number, place, name): x
        for place, one in enumerate(ours)
        for name, x in one.items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file((stored if inside else {}) | files, directory / "model.safetensors")
    stated = config | {"num_nextn_predict_layers": layers}
    (directory / "config.json").write_text(json.dumps(stated))
    return ours


def stored_name(layout, number, place, name):
    if layout == "qwen":
        renamed = {
            "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
            "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
            "eh_proj.weight": "mtp.fc.weight",
            "shared_head.norm.weight": "mtp.norm.weight",
        }
        return renamed.get(name, f"mtp.layers.{place}.{name}")
    return f"model.layers.{place + (number if layout == 'deepseek' else 0)}.{name}"


def _draw(shape, generator):
    if len(shape) == 1:
        return 1 + 0.1 * torch.randn(shape, generator=generator)
    return torch.randn(shape, generator=generator) * 1.4 / shape[-1] ** 0.5


class MtpOracle:
    """One layer over whole sequences, in fp64."""

    def __init__(self, config, tensors, sparse=False):
        self.config = transformers.AutoConfig.for_model(**config)
        self.config._attn_implementation = "eager"
        self.tensors = {name: x.double() for name, x in tensors.items()}
        kind = config["model_type"]
        if kind == "llama":
            from transformers.models.llama import modeling_llama as code

            layer, rotary = code.LlamaDecoderLayer, code.LlamaRotaryEmbedding
        else:
            from transformers.models.deepseek_v3 import modeling_deepseek_v3 as code

            layer, rotary = code.DeepseekV3DecoderLayer, code.DeepseekV3RotaryEmbedding
        place = self.config.num_hidden_layers - 1
        self.layer = layer(self.config, place).double().eval()
        self.layer.load_state_dict(self._of_layer(config))
        self.rotary = rotary(self.config)

    def _of_layer(self, config):
        outside = {f"{name}.weight" for name in AROUND} | {"x"}
        kept = {name: x for name, x in self.tensors.items() if name not in outside}
        experts = config.get("n_routed_experts") and any(".experts." in name for name in kept)
        if not experts or "mlp.experts.gate_up_proj" not in self.layer.state_dict():
            return kept
        split = [name for name in kept if ".experts." in name]
        gate, up, down = (
            torch.stack(
                [
                    kept[f"mlp.experts.{e}.{part}_proj.weight"]
                    for e in range(config["n_routed_experts"])
                ]
            )
            for part in ("gate", "up", "down")
        )
        rest = {name: x for name, x in kept.items() if name not in split}
        return rest | {
            "mlp.experts.gate_up_proj": torch.cat([gate, up], 1),
            "mlp.experts.down_proj": down,
        }

    def outputs(self, embedded, hidden, positions):
        """[T, E] before the norm: causal rows at these positions."""
        x = torch.cat([self._norm(embedded, "enorm"), self._norm(hidden, "hnorm")], -1)
        x = (x @ self.tensors["eh_proj.weight"].T)[None]
        place = torch.tensor(positions)[None]
        mask = torch.full((len(positions),) * 2, -torch.inf, dtype=torch.float64).triu(1)
        cos, sin = self.rotary(x, place)
        found = self.layer(
            x, attention_mask=mask[None, None], position_ids=place, position_embeddings=(cos, sin)
        )
        return found[0] if found.dim() == 3 else found

    def normed(self, x):
        return self._norm(x, "shared_head.norm")

    def _norm(self, x, name):
        eps = self.config.rms_norm_eps
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * self.tensors[f"{name}.weight"]


def chain(oracles, embedding, head, hidden, following, count, zero_first=False):
    """`count` greedy drafts after rows hidden[i], following[i]; layer k % n makes draft k + 1."""
    rows = [[list(following), [*hidden], list(range(len(following)))] for _ in oracles]
    drafts, handed = [], None
    for depth in range(count):
        oracle, own = oracles[depth % len(oracles)], rows[depth % len(oracles)]
        if depth:
            own[0].append(drafts[-1])
            own[1].append(handed)
            own[2].append(len(following) + depth - 1)
        embedded = embedding[own[0]].clone()
        if zero_first:
            embedded[0] = 0
        handed = oracle.outputs(embedded, torch.stack(own[1]), own[2])[-1]
        drafts.append(int((head @ oracle.normed(handed)).argmax()))
    return drafts
