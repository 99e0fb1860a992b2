"""What a target computed over its windows, on disk: paid once, read by every head.

    STORE/<key>/manifest.json        groups, layers, CPU seconds of the target
    STORE/<key>/<group>.<field>      ids int32, mask uint8, best int32, the rest bf16; mapped

The key is a digest of the target's files and of the plan, so another model's store is never read.
Shapes: N windows of a group, T tokens, E hidden size, B drawn windows, X layers, V vocabulary.
"""

import fcntl
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from interlock.models.recipe.drafters.facts import Window
from interlock.models.recipe.drafters.target import Target
from interlock.models.recipe.drafters.texts import HELD_OUT, Plan

BATCH_TOKENS = 4096
KINDS = {"ids": torch.int32, "best": torch.int32, "mask": torch.uint8}


def open_store(root: Path, target: Target, plan: Plan) -> "Store":
    """The store of this target and plan; where there is none, the target writes its windows now.

    Another process that opens the same store meanwhile waits.
    """
    folder = root / _key(target, plan)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / "lock"):
        if not (folder / "manifest.json").exists():
            _write_windows(folder, target, plan)
        return Store(folder)


class Store:
    """The windows of one store. `layers` have their outputs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read_manifest()
        training = [name for name in self.groups if name != HELD_OUT]
        self._training = training
        self._shares = torch.tensor([self.groups[name]["share"] for name in training])

    def _read_manifest(self) -> None:
        self.manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        self.layers: tuple[int, ...] = tuple(self.manifest["layers"])
        self.computed: bool = self.manifest["computed"]
        self.hidden: int = self.manifest["hidden"]
        self.groups: dict[str, dict[str, Any]] = self.manifest["groups"]

    @property
    def tokens(self) -> int:
        """In the training windows, padding included."""
        return sum(self.groups[n]["count"] * self.groups[n]["length"] for n in self._training)

    def require(self, target: Target, layers: Sequence[int]) -> None:
        """Run the target, which must be this store's, for what no head asked for before."""
        with _alone(self.folder / "lock"):
            self._read_manifest()
            missing = [layer for layer in layers if layer not in self.layers]
            if missing or not self.computed:
                _compute(self, target, missing)
                self._read_manifest()

    def counts(self, vocab_size: int) -> Tensor:
        """[V]: how often each token occurs in the training windows."""
        counts = torch.zeros(vocab_size, dtype=torch.long)
        for name in self._training:
            mask = self.field(name, "mask").bool()
            counts += torch.bincount(self.field(name, "ids")[mask], minlength=vocab_size)
        return counts

    def draw(self, tokens: int, generator: torch.Generator, taps: Sequence[int]) -> Window:
        """Random windows of one group, about `tokens` tokens of them."""
        name = self._training[int(torch.multinomial(self._shares, 1, generator=generator))]
        count, length = self.groups[name]["count"], self.groups[name]["length"]
        rows = torch.randint(count, (max(1, tokens // length),), generator=generator)
        return self._window(name, rows, taps)

    def held_out(self, tokens: int, taps: Sequence[int]) -> Iterator[Window]:
        """Every held-out window, about `tokens` tokens at a time."""
        count, length = self.groups[HELD_OUT]["count"], self.groups[HELD_OUT]["length"]
        for rows in torch.arange(count).split(max(1, tokens // length)):
            yield self._window(HELD_OUT, rows, taps)

    def field(self, group: str, name: str) -> Tensor:
        """[N, T] or [N, T, E], mapped from its file and written through."""
        shape: tuple[int, ...] = (self.groups[group]["count"], self.groups[group]["length"])
        if name not in KINDS:
            shape = (*shape, self.hidden)
        return torch.from_file(
            str(self.folder / f"{group}.{name}"),
            shared=True,
            size=math.prod(shape),
            dtype=KINDS.get(name, torch.bfloat16),
        ).view(shape)

    def _window(self, group: str, rows: Tensor, taps: Sequence[int]) -> Window:
        read = {name: self.field(group, name)[rows] for name in ("ids", "best", "mask")}
        features = self.field(group, "features")[rows].float()
        tapped = [self.field(group, f"layer{layer}")[rows].float() for layer in taps]
        return Window(
            ids_BT=read["ids"].long(),
            features_BTE=features,
            hidden_BTE=self.field(group, "hidden")[rows].float(),
            taps_BTXE=torch.stack(tapped, dim=2) if tapped else features.unsqueeze(2)[:, :, :0],
            best_BT=read["best"].long(),
            mask_BT=read["mask"].bool(),
        )


def _key(target: Target, plan: Plan) -> str:
    parts = target.description.name, target.digest()[:12], plan.digest()[:12], str(target.dtype)
    return "-".join(parts).replace("torch.", "")


def _write_windows(folder: Path, target: Target, plan: Plan) -> None:
    start = time.process_time()
    groups = plan.groups(target)
    for group in groups:
        for name, values in (("ids", group.ids_NT), ("mask", group.mask_NT)):
            (folder / f"{group.name}.{name}").write_bytes(values.to(KINDS[name]).numpy().tobytes())
    sizes = {
        g.name: {"count": g.ids_NT.shape[0], "length": g.ids_NT.shape[1], "share": g.share}
        for g in groups
    }
    _write_manifest(folder, {
        "groups": sizes, "layers": [], "computed": False,
        "hidden": target.description.hidden_size,
        "target_cpu_seconds": round(time.process_time() - start, 1),
    })  # fmt: skip


def _compute(store: Store, target: Target, layers: Sequence[int]) -> None:
    start = time.process_time()
    for group, sizes in store.groups.items():
        ids = store.field(group, "ids")
        goal = {f"layer{layer}": store.field(group, f"layer{layer}") for layer in layers}
        if not store.computed:
            goal |= {name: store.field(group, name) for name in ("features", "hidden", "best")}
        batches = torch.arange(sizes["count"]).split(max(1, BATCH_TOKENS // sizes["length"]))
        for rows in track(batches, description=f"target over {group}"):
            computed = target.compute(ids[rows].long(), layers)
            values = {f"layer{layer}": x for layer, x in computed.outputs.items()}
            values |= {"features": computed.features_BTE, "hidden": computed.hidden_BTE}
            values["best"] = computed.best_BT
            for name, tensor in goal.items():
                tensor[rows] = values[name].to(tensor.dtype)
    seconds = store.manifest["target_cpu_seconds"] + time.process_time() - start
    _write_manifest(store.folder, {
        **store.manifest, "layers": sorted({*store.layers, *layers}), "computed": True,
        "target_cpu_seconds": round(seconds, 1),
    })  # fmt: skip


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    fresh = folder / "manifest.new"
    fresh.write_text(json.dumps(manifest, indent=2) + "\n")
    fresh.replace(folder / "manifest.json")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
