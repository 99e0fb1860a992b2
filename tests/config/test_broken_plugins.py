"""Plugins that are broken, old, doubled or in each other's way, in environments of their own."""

import json
import os
import re

import pytest

from tests.installed import Site

HEADER = """
from dataclasses import dataclass
from interlock.core.component import Component
from interlock.core.hooks import hookimpl
INTERLOCK_CONTRACT = 1
"""
VICTIM = '''
@dataclass(frozen=True)
class Config:
    """Options."""

    name: str = "{name}"


@hookimpl
def interlock_components():
    return [Component("scheduler/victim", "{name}", Config, "{build}", "")]
'''
LATEST = "interlock.plugins.scheduler.victim:build_latest"
RUN = ("executor=fixed", "workload.num_requests=1", "progress=false", "hydra.run.dir=run")
FAILURES = {
    "an import": ("import z_not_installed", "No module named 'z_not_installed'"),
    "an exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "half-way": (
        VICTIM.format(name="half", build=LATEST)
        + "\n@hookimpl\ndef interlock_model_families():\n    raise OSError('disk')\n",
        "OSError: disk",
    ),
}


class Plugins(Site):
    """A site in which a plugin is a module and its metadata."""

    def add(self, name, body=None, version="1.0", header=HEADER, build=LATEST):
        self.metadata(name, version, ["[interlock]", f"{name} = {name}"])
        text = VICTIM.format(name=name, build=build) if body is None else body
        (self.folder / f"{name}.py").write_text(header + text)


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    return Plugins(folder)


def mentions(printed, text):
    return [line for line in printed.splitlines() if text in line]


def test_three_broken_plugins_are_a_warning_each_and_the_others_work(site, tmp_path):
    site.add("a_first")
    for name, (body, _) in zip(("b_import", "c_exit", "d_half"), FAILURES.values(), strict=True):
        site.add(name, body)
    site.add("e_last")
    printed = site.interlock("run", *RUN, "scheduler/victim=e_last", cwd=tmp_path)
    for name, (_, cause) in zip(("b_import", "c_exit", "d_half"), FAILURES.values(), strict=True):
        (line,) = mentions(printed, name)
        assert line.startswith(f"plugin {name} 1.0")
        assert cause in line
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["config"]["scheduler"]["victim"]["name"] == "e_last"
    listed = json.loads("{" + site.interlock("plugins", "--json", cwd=tmp_path).partition("{")[2])
    names = {component["name"] for component in listed["components"]}
    assert {"a_first", "e_last"} <= names
    assert "half" not in names
    assert {broken["distribution"] for broken in listed["broken"]} == {
        "b_import", "c_exit", "d_half",
    }  # fmt: skip


def test_a_component_of_a_broken_plugin_stops_the_start_with_plugin_key_and_cause(site, tmp_path):
    site.add("broken", FAILURES["half-way"][0])
    printed = site.interlock("run", *RUN, "scheduler/victim=half", cwd=tmp_path, status=1)
    (line,) = mentions(printed, "scheduler/victim=half")
    assert "cannot be chosen: plugin broken 1.0" in line
    assert "OSError: disk" in line
    assert "Traceback" not in printed


def test_strict_mode_makes_a_broken_plugin_fatal(site, tmp_path):
    site.add("broken", FAILURES["an exit"][0])
    printed = site.interlock("run", *RUN, "strict_plugins=true", cwd=tmp_path, status=1)
    (line,) = mentions(printed, "strict_plugins=true")
    assert "plugin broken 1.0" in line
    assert "SystemExit: 3" in line


@pytest.mark.parametrize(
    ("build", "cause"),
    [
        ("import z_not_installed", "No module named 'z_not_installed'"),
        ("def build(config, context):\n    raise KeyError('no key')", "KeyError: 'no key'"),
    ],
)
def test_a_component_that_cannot_be_built_names_itself_its_package_and_the_cause(
    site, tmp_path, build, cause
):
    """Without a debug variable, and without a traceback."""
    site.add("afar", build="afar_build:build")
    (site.folder / "afar_build.py").write_text(build + "\n")
    printed = site.interlock("run", *RUN, "scheduler/victim=afar", cwd=tmp_path, status=1)
    (line,) = mentions(printed, cause)
    assert "scheduler/victim=afar (from afar 1.0) could not be built" in line
    assert "Traceback" not in printed
    assert "HYDRA_FULL_ERROR" not in printed


def test_a_name_that_two_offer_stops_the_start_and_names_both(site, tmp_path):
    same = VICTIM.format(name="same", build=LATEST)
    site.add("first", same)
    site.add("second", same, version="4")
    printed = site.interlock("run", *RUN, cwd=tmp_path, status=1)
    (line,) = mentions(printed, "scheduler/victim=same")
    assert "first 1.0" in line
    assert "second 4" in line


def test_a_plugin_found_twice_is_loaded_once_and_the_next_one_is_there(site, tmp_path):
    """As a wheel in one entry of sys.path and as an editable source tree in another."""
    counted = VICTIM.format(name="twice", build=LATEST) + "\nprint('loaded once')\n"
    site.add("twice", counted)
    source = Plugins(tmp_path / "source")
    source.folder.mkdir()
    source.add("twice", counted)
    (info,) = source.folder.glob("*.dist-info")
    (info / "METADATA").rename(info / "PKG-INFO")
    info.rename(source.folder / "twice.egg-info")
    site.add("z_third")
    rest = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    path = [str(site.folder), str(source.folder), str(site.folder), *rest]
    site.environment["PYTHONPATH"] = os.pathsep.join(path)
    printed = site.interlock("plugins", cwd=tmp_path)
    assert printed.count("loaded once") == 1
    assert len(re.findall(r"^scheduler/victim +twice ", printed, flags=re.MULTILINE)) == 1
    assert mentions(printed, "z_third")
    assert not mentions(printed, "BROKEN")


NEXT = """
import sys
from interlock.core import component, hooks, registry
for module in (component, hooks, registry):
    module.CONTRACT = 3
hooks.OLDEST, hooks.CHANGES = 2, {1: "it began", 2: "tiers say keys()", 3: "policies learn of time"}
from interlock.driver.cli import main
sys.argv[1:] = ["plugins"]
main()
"""
"""Interlock as it is two contracts later, when the last one is still supported."""


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        (1, "BROKEN: aged 1.0, aged = aged: it was written for plugin contract 1, and this "
            "Interlock has plugin contract 3; since 2: tiers say keys(); since 3: policies learn "
            "of time"),
        (2, "plugin aged 1.0 still works: it was written for plugin contract 2, and this Interlock "
            "has plugin contract 3; since 3: policies learn of time"),
        (4, "plugin contract 4, and this Interlock has plugin contract 3; it needs a newer "
            "Interlock"),
    ],
)  # fmt: skip
def test_a_plugin_of_another_contract_is_refused_or_supported_with_the_difference(
    site, tmp_path, contract, said
):
    site.add("aged", header=HEADER.replace("CONTRACT = 1", f"CONTRACT = {contract}"))
    printed = site.code(NEXT, cwd=tmp_path)
    assert mentions(printed, said)
    supported = bool(re.search(r"^scheduler/victim +aged ", printed, flags=re.MULTILINE))
    assert supported == (contract == 2)
