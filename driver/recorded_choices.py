"""What a rerun's folder is named after: the choices of the run that it repeats."""

from pathlib import Path

from interlock.core.errors import RunFolderError
from interlock.driver.run_folder import RUN, read_object


def recorded_choices(folder: str) -> dict[str, str]:
    """The choices that name a folder, by group; empty where it is no run's.

    A configuration keeps no preset's name: `cache` is its index, or without one its allocator.
    """
    try:
        config = read_object(Path(folder).expanduser() / RUN)["config"]
        cache = config["cache"]
        index, allocator = cache["index"]["name"], cache["allocator"]["name"]
        return {
            "attention": str(config["attention"]["name"]),
            "cache": str(allocator if index == "none" else index),
            "spec": str(config["spec"]["name"]),
        }
    except (RunFolderError, KeyError, TypeError):
        return {}  # the rerun says what is wrong with it
