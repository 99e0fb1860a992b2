"""What a reader must know of a study that its figures do not say: aliases, neighbours, its end."""

from interlock.study.designs import aliases
from interlock.study.folder import StudyFolder


def runner_notes(folder: StudyFolder) -> list[str]:
    """What the runner knows and the figures do not say."""
    manifest = folder.manifest()
    study, cells = folder.study(), folder.cells()
    found = [f"of this design, {alias}" for alias in aliases(study, cells)]
    timed = len(manifest.get("virtual", ())) < len(cells)
    if timed and (manifest.get("jobs", 1) > 1 or study.launcher):
        found.append(
            "runs went on beside each other: each had cores of its own, but memory bandwidth and "
            "caches were shared, so that times are those of a busy machine"
        )
    if manifest.get("state") != "done":
        found.append("the study is not finished; this is what ran so far")
    return found
