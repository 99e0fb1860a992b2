"""Hydra's launchers, which run jobs beside each other: is the one that is asked for here?"""

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

from interlock.core.errors import ConfigError

EXTRAS = {
    "joblib": ("hydra-joblib-launcher", "launchers"),
    "submitit": ("hydra-submitit-launcher", "launchers"),
    "ray": ("hydra-ray-launcher", "ray"),
}
"""The first word of a launcher's name -> its package, and the extra that brings it."""


def require_launcher(name: str) -> None:
    """Raise ConfigError, with what to install, where a launcher that is known is not here."""
    kind = name.split("_")[0]
    if kind not in EXTRAS:
        return  # Hydra knows it, or says that it does not
    modules = {plugin.__module__ for plugin in Plugins.instance().discover(Launcher)}
    if not any(f"hydra_{kind}_launcher" in module for module in modules):
        package, extra = EXTRAS[kind]
        raise ConfigError(
            f"launcher={name} needs the package {package}, which is not installed: "
            f'pip install "interlock[{extra}]" (docs/studies.md, Launchers)'
        )
