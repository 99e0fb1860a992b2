"""Plugins are found, judged and taken in whole or not at all."""

import pytest

from interlock.conf.find_model import find_model
from interlock.core.component import BuildContext
from interlock.core.errors import CheckpointError, ContractError, PluginError

DRAFTER = """
@dataclass
class Config:
    '''Options.'''
    depth: int = option(3, "how deep")

@hookimpl
def interlock_components():
    return [Component("spec", "{name}", Config, "{build}", "drafts from afar")]
"""


def drafter(name: str, build: str = "nowhere:build") -> str:
    return DRAFTER.format(name=name, build=build)


def test_a_plugin_of_a_stranger_has_the_same_rank_as_a_built_in_one(install, registry_of):
    registry = registry_of(install("afar", drafter("afar"), version="2.1"))
    assert "afar" in registry.names("spec")
    assert "ngram" in registry.names("spec")
    assert str(registry.origins["spec", "afar"]) == "afar 2.1"
    assert str(registry.origins["spec", "ngram"]).startswith("interlock ")


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        ("import z_not_installed", "No module named 'z_not_installed'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise RuntimeError('no\\n luck')", "RuntimeError: no luck"),
        (
            drafter("half")
            + """
@hookimpl
def interlock_model_families():
    raise LookupError("half-way")
""",
            "LookupError: half-way",
        ),
        (
            """
@hookimpl
def interlock_components():
    yield Component("spec", "half", object, "m:b", "yielded before the failure")
    raise OSError("disk")
""",
            "OSError: disk",
        ),
        ("@hookimpl\ndef interlock_componets():\n    return []\n", "interlock_componets"),
        ("import pytest\npytest.skip('elsewhere', allow_module_level=True)", "Skipped: elsewhere"),
        (
            "@hookimpl\ndef interlock_components():\n    return 42\n",
            "interlock_components gave 42, not a list of Components",
        ),
        (
            "@hookimpl\ndef interlock_config_dirs():\n    return '/tmp'\n",
            "interlock_config_dirs gave '/tmp', not a list of texts",
        ),
    ],
)
def test_a_broken_plugin_is_one_warning_and_the_others_work(
    install, registry_of, caplog, failure, cause
):
    site = install("one", drafter("one"))
    install("two-broken", failure)
    install("three", drafter("three"))
    registry = registry_of(site)
    assert {"one", "three", "ngram"} <= set(registry.names("spec"))
    assert "half" not in registry.names("spec")
    assert len(caplog.records) == 1
    assert "two-broken 1.0" in caplog.text
    assert cause in caplog.text
    with pytest.raises(PluginError, match=r"strict_plugins=true: plugin two-broken 1\.0"):
        registry.require_all_plugins()


def test_choosing_a_component_of_a_broken_plugin_names_plugin_key_and_cause(install, registry_of):
    broken = drafter("half") + "\n@hookimpl\ndef interlock_step_observers():\n    import z\n"
    registry = registry_of(install("half-there", broken))
    with pytest.raises(PluginError) as error:
        registry.chosen("spec", "half")
    message = str(error.value)
    assert "spec=half cannot be chosen" in message
    assert "half-there 1.0" in message
    assert "No module named 'z'" in message


def test_an_unknown_choice_mentions_plugins_that_may_have_offered_it(install, registry_of):
    registry = registry_of(install("gone", "import z_not_installed"))
    message = registry.unknown("spec", "gone")
    assert message.startswith("no spec named 'gone'")
    assert "may belong to a broken plugin: plugin gone 1.0" in message


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (
            "INTERLOCK_CONTRACT = 7",
            "contract 7, and this Interlock has plugin contract 1; it needs a newer Interlock",
        ),
        ("del INTERLOCK_CONTRACT", "states no contract version, and this Interlock has plugin"),
    ],
)
def test_a_plugin_for_another_contract_is_refused(install, registry_of, statement, reason):
    registry = registry_of(install("old", drafter("old") + statement))
    assert "old" not in registry.names("spec")
    assert reason in registry.broken[0].cause


def test_a_plugin_found_twice_is_loaded_once(install, registry_of):
    counted = (
        drafter("twice") + "\nimport builtins\nbuiltins.loads = getattr(builtins, 'loads', 0) + 1"
    )
    site = install("twice", counted)
    other = install("twice", counted, folder="source-tree")
    third = install("z-third", drafter("third"), folder="third")
    registry = registry_of(site, other, third)
    assert not registry.broken
    assert {"twice", "third"} <= set(registry.names("spec"))


@pytest.mark.parametrize("loses", ["METADATA", "Name"])
def test_a_plugin_whose_distribution_lost_its_name_is_called_by_its_entry_point(
    install, registry_of, loses
):
    site = install("lost", drafter("lost"))
    about = site / "lost-1.0.dist-info" / "METADATA"
    about.unlink() if loses == "METADATA" else about.write_text("Metadata-Version: 2.1\n")
    registry = registry_of(site)
    said = "(plugin 'lost' without a distribution)"
    assert str(registry.origins["spec", "lost"]) == said


def test_two_plugins_with_one_name_are_an_error_naming_both(install, registry_of):
    site = install("first", drafter("same"))
    install("second", drafter("same"), version="4")
    with pytest.raises(PluginError, match=r"spec=same .*first 1\.0 and second 4"):
        registry_of(site)


@pytest.mark.parametrize(
    ("component", "reason"),
    [
        ("Component('sepc', 'x', Config, 'm:b', '')", "no seam named 'sepc'; did you mean 'spec'"),
        ("Component('spec', 'auto', Config, 'm:b', '')", "not 'auto'"),
        ("Component('spec', 'x', dict, 'm:b', '')", "is not a dataclass"),
        ("Component('spec', 'x', Taken, 'm:b', '')", "belong to other seams"),
        ("Component('spec', 'x', Bare, 'm:b', '')", "missing 1 required"),
        ("Component('spec', 'x', Other, 'm:b', '')", "its config's name is 'y', not 'x'"),
        ("'spec'", "not a Component"),
    ],
)
def test_a_malformed_component_is_refused_with_its_reason(install, registry_of, component, reason):
    body = f"""
@dataclass
class Config:
    pass

@dataclass
class Taken:
    verifier: str = ""

@dataclass
class Bare:
    depth: int

@dataclass
class Other:
    name: str = "y"

@hookimpl
def interlock_components():
    return [{component}]
"""
    registry = registry_of(install("odd", body))
    assert reason in registry.broken[0].cause


@pytest.mark.parametrize(
    ("build", "error", "cause"),
    [
        ("import z\ndef build(config, context): ...", PluginError, "No module named 'z'"),
        ("raise SystemExit('bye')", PluginError, "SystemExit: bye"),
        ("def build(config, context): return 1 / 0", PluginError, "division by zero"),
        ("def build(config, context): return 'text'", ContractError, "built a str, not a Drafter"),
    ],
)
def test_a_build_that_fails_names_component_plugin_and_cause(
    install, registry_of, build, error, cause
):
    site = install("afar", drafter("afar", "afar_build:build"))
    (site / "afar_build.py").write_text(build)
    with pytest.raises(error, match=r"spec=afar \(from afar 1\.0\)") as raised:
        registry_of(site).chosen("spec", "afar").build(BuildContext(model=None))
    assert cause in str(raised.value)


def test_observers_and_config_folders_are_collected(install, registry_of, tmp_path):
    body = f"""
@hookimpl
def interlock_config_dirs():
    return [{str(tmp_path)!r}]

@hookimpl
def interlock_step_observers():
    return [print]
"""
    registry = registry_of(install("watcher", body))
    assert registry.config_dirs == [str(tmp_path)]
    assert registry.observers == [print]


@pytest.mark.parametrize("hook", ["interlock_searches", "interlock_step_observers"])
def test_a_plugin_whose_hook_gives_no_function_is_left_out(install, registry_of, hook):
    body = f"\n@hookimpl\ndef {hook}():\n    return [3]\n"
    registry = registry_of(install("odd", body))
    assert f"{hook} gave 3, not a function" in registry.broken[0].cause


MODEL_FORMAT = """
from interlock.core.model_files import ModelFormat
from interlock.plugins.models.hugging_face import HuggingFaceDirectory

class Folder(ModelFormat):
    name = "folders with a .here"
    models = {"packaged": "from afar"}

    def open(self, path):
        return HuggingFaceDirectory(path / "inside") if (path / ".here").exists() else None

    def named(self, model):
        return HuggingFaceDirectory("/packages/" + model)

@hookimpl
def interlock_model_formats():
    return [Folder()]
"""


def test_a_plugin_can_bring_a_way_to_store_models(install, registry_of, tmp_path):
    formats = list(registry_of(install("boxes", MODEL_FORMAT)).formats.values())
    assert str(find_model("packaged", formats).path) == "/packages/packaged"
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(CheckpointError, match=r"no config.json; .* folders with a .here"):
        find_model(str(model), formats)
    (model / ".here").touch()
    assert find_model(str(model), formats).path == model / "inside"
    with pytest.raises(CheckpointError, match=r"'packagd'; did you mean 'packaged'"):
        find_model("packagd", formats)


def test_two_formats_of_one_name_are_refused_by_both_plugins(install, registry_of):
    site = install("one", MODEL_FORMAT)
    install("two", MODEL_FORMAT)
    with pytest.raises(PluginError, match=r"model format folders .* one 1\.0 and two 1\.0"):
        registry_of(site)
