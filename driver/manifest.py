"""The manifest of a run: enough to know what ran, and to run it again."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch

from interlock.core.adapters import NO_ADAPTERS, AdapterSet
from interlock.core.model import ModelDescription
from interlock.core.options import plain
from interlock.core.request import Request
from interlock.core.workload import BadRequest

FULL_HASH_BYTES = 64 << 20
"""Weight files up to this size are hashed whole, larger ones by header and size."""
PACKAGES = ("torch", "numpy", "triton", "safetensors", "tokenizers", "gguf", "hydra-core", "pluggy")


def manifest(
    components: Mapping[str, type],
    config: Mapping[str, Any],
    overrides: Sequence[str],
    seed: int,
    entries: Sequence[Request | BadRequest],
    model: ModelDescription,
    device: torch.device,
    clock: Literal["wall", "virtual"],
    counters: Mapping[str, Any],
    inert: Sequence[str] = (),
    adapters: AdapterSet = NO_ADAPTERS,
) -> dict[str, Any]:
    """run.json: plain values. `components` maps a seam to the class that was built.

    `counters` says what each component did; `inert` names the seams whose chosen component was
    never exercised. `entries` is what the workload asked before anything was answered: what follows
    from answers is not hashed. `seed` is the run's: requests' own seeds are in requests.jsonl.
    """
    return {
        "components": {seam: component_entry(built) for seam, built in components.items()},
        "inert": list(inert),
        "counters": plain(counters),
        "config": plain(config),
        "overrides": list(overrides),
        "seed": seed,
        "workload_sha256": workload_hash(entries),
        "num_requests": len(entries),
        "model": model_entry(model),
        "adapters": adapter_entries(adapters),
        "device": device_entry(device),
        "clock": clock,
        "git": git_state(Path.cwd()),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in ("interlock", *PACKAGES)},
    }


def component_entry(built: type) -> dict[str, Any]:
    """Class path, and the distribution (with its version) that the class came from."""
    name = _distribution_of(built.__module__)
    return {
        "class": f"{built.__module__}.{built.__qualname__}",
        "distribution": name,
        "version": _version(name) if name else None,
    }


def workload_hash(entries: Sequence[Request | BadRequest]) -> str:
    """sha256 over the canonical JSON of the entries, as the workload made them.

    Two runs with equal hashes were asked the same things at the same times.
    """
    digest = hashlib.sha256()
    for entry in entries:
        line = json.dumps(asdict(entry), sort_keys=True, separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def model_entry(model: ModelDescription) -> dict[str, Any]:
    """Name, family and, for a model on disk, sizes and a hash of its files and what it covers."""
    entry: dict[str, Any] = {"name": model.name, "family": model.family}
    entry |= {"sha256": None, "sha256_of": None, "file_bytes": {}}
    if model.files is None:
        return entry
    sizes = {path: path.stat().st_size for path in model.files.stored()}
    whole = sum(sizes.values()) <= FULL_HASH_BYTES
    digest = hashlib.sha256()
    for path, size in sizes.items():
        digest.update(f"{path.name}:{size}\n".encode())
        digest.update(path.read_bytes() if whole else model.files.header(path))
    covers = "whole files" if whole else "config.json, and header and size of each weight file"
    return entry | {
        "sha256": digest.hexdigest(),
        "sha256_of": covers,
        "file_bytes": {path.name: size for path, size in sizes.items()},
    }


def adapter_entries(adapters: AdapterSet) -> dict[str, dict[str, str]]:
    """Name -> folder and digest of an adapter's files: the key of its cached pages."""
    listed = zip(adapters.names, adapters.directories, adapters.digests, strict=True)
    return {
        name: {"directory": str(directory.absolute()), "digest": digest.hex()}
        for name, directory, digest in listed
    }


def device_entry(device: torch.device) -> dict[str, Any]:
    """The processor that ran the model, torch's threads, and the cores that they may run on."""
    entry: dict[str, Any] = {"device": str(device), "cpu": _cpu_name(), "cores": os.cpu_count()}
    entry |= {"threads": torch.get_num_threads()}
    if hasattr(os, "sched_getaffinity"):
        entry |= {"may_use_cores": sorted(os.sched_getaffinity(0))}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        entry |= {"gpu": properties.name, "gpu_memory_bytes": properties.total_memory}
        entry |= {"cuda": torch.version.cuda}
    return entry


def git_state(directory: Path, timeout_s: float = 2.0) -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it; None outside a checkout or without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(directory), *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
        return run.stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _distribution_of(module: str) -> str | None:
    """The distribution whose top-level package the module is in; None when it is ambiguous."""
    if module.split(".")[0] == "interlock":
        return "interlock"
    owners = set(_owners().get(module.split(".")[0], ()))
    return owners.pop() if len(owners) == 1 else None


@cache
def _owners() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()
