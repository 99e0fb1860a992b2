"""Who may import what, and what a component may not call. Read from the syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = sorted(ROOT.glob("core/**/*.py"))
CONF = sorted(ROOT.glob("conf/**/*.py"))
DRIVER = sorted(ROOT.glob("driver/**/*.py"))
STUDY = sorted(ROOT.glob("study/**/*.py"))
PLUGINS = sorted(ROOT.glob("plugins/**/*.py"))
NATIVE = "interlock.plugins.native."
"""Compiles the C++ that groups bring: a tool of theirs, no group itself."""
EDGE = {
    "conf/hydra_edge.py", "conf/hydra_launchers.py", "conf/hydra_overrides.py",
    "conf/hydra_sweeps.py", "driver/cli.py", "driver/hydra_jobs.py",
    "study/hydra_launch.py",
}  # fmt: skip
IMPURE: dict[str, set[str] | None] = {
    "time": {"time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns"},
    "random": None,
    "numpy.random": {"seed", "rand", "randn", "randint", "random", "choice", "shuffle"},
    "torch": {"manual_seed", "seed"},
    "os": {"environ", "getenv"},
}
"""Module -> attributes that read a clock, the environment or global random state; None: any."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names of everything the file imports, also inside functions and type checks."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def impure_uses(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node.value).partition(".")
            module = ".".join(filter(None, [modules.get(first, ""), rest]))
            if module in IMPURE and is_impure(module, node.attr):
                yield f"line {node.lineno}: {module}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in IMPURE:
            for alias in node.names:
                if is_impure(node.module, alias.name):
                    yield f"line {node.lineno}: {node.module}.{alias.name}"


def is_impure(module: str, attribute: str) -> bool:
    listed = IMPURE[module]
    return listed is None or attribute in listed


@pytest.mark.parametrize("path", CORE + CONF, ids=name_of)
def test_core_and_configuration_import_neither_plugins_nor_the_driver(path):
    outside = ("interlock.plugins", "interlock.driver", "interlock.study")
    assert not [name for name in imports_of(path) if name.startswith(outside)]


def test_the_core_needs_configuration_only_where_engines_and_ranks_begin():
    readers = [
        name_of(path)
        for path in CORE
        if any(name.startswith("interlock.conf") for name in imports_of(path))
    ]
    entrances = ["core/assemble.py", "core/rank.py"]
    assert [name for name in readers if "/testing/" not in name] == entrances


@pytest.mark.parametrize("path", DRIVER + STUDY, ids=name_of)
def test_the_driver_and_studies_import_no_plugin(path):
    assert not [name for name in imports_of(path) if name.startswith("interlock.plugins")]


@pytest.mark.parametrize("path", PLUGINS, ids=name_of)
def test_plugins_import_core_and_their_own_group_only(path):
    if path.parent == ROOT / "plugins":
        return  # the hook of the built-in plugin, which collects the groups
    group = path.relative_to(ROOT / "plugins").parts[0]
    allowed = ("interlock.core.", f"interlock.plugins.{group}.", NATIVE)
    ours = [name for name in imports_of(path) if name.split(".")[0] == "interlock"]
    assert not [name for name in ours if not name.startswith(allowed)]


def test_what_compiles_for_plugins_knows_nothing_of_the_engine():
    found = [name for path in ROOT.glob("plugins/native/*.py") for name in imports_of(path)]
    assert "ctypes" in found
    assert not [name for name in found if name.startswith("interlock")]


@pytest.mark.parametrize("path", CORE + CONF + DRIVER + STUDY + PLUGINS, ids=name_of)
def test_the_configuration_system_stays_at_the_edge(path):
    if name_of(path) not in EDGE:
        edge = {"hydra", "omegaconf", "antlr4"}
        assert not [name for name in imports_of(path) if name.split(".")[0] in edge]


@pytest.mark.parametrize("path", CORE + CONF + PLUGINS, ids=name_of)
def test_nothing_is_imported_by_its_folder_name(path):
    folders = {"core", "plugins", "conf", "models", "study"}
    assert not [name for name in imports_of(path) if name.split(".")[0] in folders]


@pytest.mark.parametrize("path", PLUGINS, ids=name_of)
def test_a_component_reads_no_clock_environment_or_global_random_state(path):
    assert not list(impure_uses(path))


def test_the_look_for_impure_calls_finds_them(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import random, time, torch, os\nimport numpy as np\nfrom time import monotonic\n"
        "random.random(); time.time(); torch.manual_seed(0); os.environ['X']; np.random.seed(0)\n"
    )
    assert len(list(impure_uses(bad))) == 6


@pytest.mark.parametrize(
    "path", [p for p in (*CORE, *PLUGINS) if p.name == "__init__.py"], ids=name_of
)
def test_a_package_hides_none_of_its_modules_behind_another_name(path):
    """`import package.module as name` takes what the package calls `module`."""
    inside = {p.stem for p in path.parent.iterdir() if p.is_dir() or p.suffix == ".py"}
    package = f"interlock.{path.parent.relative_to(ROOT).as_posix().replace('/', '.')}"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bound, real = alias.asname or alias.name, f"{node.module}.{alias.name}"
                assert bound not in inside or real == f"{package}.{bound}", f"{bound} is {real}"
