"""A recorded run served again: its configuration, workload and clock, and what came out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlock.conf.read_config import read_config
from interlock.core.adapters import AdapterSet
from interlock.core.batch import StepDecision
from interlock.core.errors import ConfigError, InterlockError, RunFolderError
from interlock.core.registry import load_registry
from interlock.core.request import Request, RequestRecord, Status
from interlock.core.settings import EngineConfig
from interlock.core.workload import BadRequest
from interlock.driver.manifest import adapter_entries, workload_hash
from interlock.driver.replay_clock import ReplayClock
from interlock.driver.run_folder import SavedRun, read_requests, read_run

TAKEN_BESIDE = ("rerun", "progress", "hydra")


@dataclass(frozen=True)
class Rerun:
    """A saved run with its lines of requests.jsonl, both read before anything runs."""

    saved: SavedRun
    requests: Sequence[Mapping[str, Any]]

    @staticmethod
    def of(folder: str, overrides: Sequence[str]) -> "Rerun":
        """The run in this folder.

        Raises ConfigError for a folder that is none, and for overrides that would not be followed.
        """
        _refuse_others(overrides)
        try:
            saved = read_run(Path(folder).expanduser())
            return Rerun(saved, read_requests(saved.directory))
        except RunFolderError as error:
            raise ConfigError(f"rerun={folder}: {error}") from error

    def config(self) -> EngineConfig:
        """The recorded configuration, with the thread count it really had."""
        problems: list[str] = []
        device = self.saved.manifest.get("device")
        ran = device.items() if isinstance(device, dict) else ()
        threads = {key: value for key, value in ran if key == "threads"}
        config = read_config(self.saved.config | threads, load_registry(), problems)
        if config is None:
            raise ConfigError([f"rerun={self.saved.directory}: {problem}" for problem in problems])
        store = config.choices["cache/tiers"].name
        if store != "none":
            raise ConfigError(
                f"rerun={self.saved.directory}: it ran with cache/tiers={store}, whose copies end "
                "beside the steps at times that were not recorded; run it anew with the overrides "
                "in its run.json"
            )
        if config.choices["cache/snapshot"].name != "none":
            raise ConfigError(
                f"rerun={self.saved.directory}: it ran with cache/snapshot, whose directory may "
                "have changed; run it anew with the overrides in its run.json"
            )
        return config

    def clock(self) -> ReplayClock:
        """The recorded times at which steps were planned and ended."""
        return ReplayClock([t for s in self.saved.steps for t in (s.now_s, s.end_s)])

    @property
    def steps_before_stop(self) -> int | None:
        """After how many steps the recorded run was stopped; None if every request ended."""
        ended = {status.value for status in (Status.FINISHED, Status.ABORTED, Status.FAILED)}
        whole = all(line.get("status") in ended for line in self.requests)
        return None if whole else len(self.saved.steps)

    def require_same_workload(self, entries: Sequence[Request | BadRequest]) -> None:
        """Raise InterlockError unless these are the recorded requests."""
        if workload_hash(entries) != self.saved.manifest.get("workload_sha256"):
            raise InterlockError(
                f"rerun={self.saved.directory}: the workload is not the recorded one; its file, "
                "the model's files or the program have changed since"
            )

    def require_same_adapters(self, adapters: AdapterSet) -> None:
        """Raise InterlockError unless the files of every adapter hold what they held."""
        held = self.saved.manifest.get("adapters")
        recorded = held if isinstance(held, dict) else {}
        changed = [
            name
            for name, entry in adapter_entries(adapters).items()
            if entry["digest"] != (recorded.get(name) or {}).get("digest")
        ]
        if changed:
            raise InterlockError(
                f"rerun={self.saved.directory}: the files of adapter {', '.join(changed)} have "
                "changed since"
            )

    def compare(
        self, decisions: Sequence[StepDecision], records: Sequence[RequestRecord]
    ) -> dict[str, Any]:
        """Whether decisions and tokens are the recorded ones; the first difference."""
        recorded = self.saved.steps
        differing = [
            step.step
            for step, before in zip(decisions, recorded, strict=False)
            if step.rows != before.rows
        ]
        tokens: dict[Any, Any] = {
            (line.get("index"), line.get("sample", 0)): line.get("output_token_ids")
            for line in self.requests
        }
        found: dict[Any, Any] = {
            (record.index, record.sample): record.output_token_ids for record in records
        }
        changed = sorted({k[0] for k in found | tokens if found.get(k) != tokens.get(k)})
        return {
            "of": str(self.saved.directory),
            "same_decisions": not differing and len(decisions) == len(recorded),
            "first_differing_step": differing[0] if differing else None,
            "same_tokens": not changed,
            "differing_requests": changed,
        }


def verdict(comparison: Mapping[str, Any]) -> str:
    """A comparison in one line."""
    if comparison["same_decisions"] and comparison["same_tokens"]:
        return f"rerun of {comparison['of']}: the same decisions and the same tokens"
    return (
        f"rerun of {comparison['of']} DIFFERS: first differing step "
        f"{comparison['first_differing_step']}, requests with other tokens: "
        f"{comparison['differing_requests'] or 'none'}"
    )


def _refuse_others(overrides: Sequence[str]) -> None:
    """The configuration of a rerun is the recorded one: what else was asked for is not done."""
    others = [
        text for text in overrides if re.split(r"[=./@]", text.lstrip("+~"))[0] not in TAKEN_BESIDE
    ]
    if others:
        raise ConfigError(
            f"rerun= takes the recorded configuration and nothing else; leave out "
            f"{' '.join(others)}, or leave out rerun= for a new run"
        )
