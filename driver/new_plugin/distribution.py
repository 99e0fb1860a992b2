"""A complete distribution, file by file, from a name and a template."""

import textwrap
from dataclasses import dataclass

from interlock.core.component import CONTRACT
from interlock.core.seams import SEAMS
from interlock.driver.new_plugin.template import Template

OTHERS = {
    "attention": "reference", "cache/allocator": "paged", "cache/index": "radix",
    "cache/eviction": "lru", "cache/tiers": "cpu", "cache/load": "always",
    "scheduler/order": "arrival", "scheduler/admission": "when_it_fits",
    "scheduler/chunking": "decode_first", "scheduler/victim": "latest", "spec": "ngram",
    "spec/verifier": "target_only", "spec/length": "fixed", "parallel": "none",
    "structured": "none", "executor": "fixed", "workload": "synthetic",
}  # fmt: skip
"""What a new component is compared with first."""


@dataclass(frozen=True)
class Names:
    """What a distribution, its module, its component and its class are called."""

    distribution: str

    @property
    def module(self) -> str:
        """Of the import."""
        return self.distribution.lower().replace("-", "_").replace(".", "_")

    @property
    def choice(self) -> str:
        """Of the component, as it is typed behind the seam."""
        return self.module

    @property
    def title(self) -> str:
        """Of the class."""
        return "".join(word.capitalize() for word in self.module.split("_"))


def distribution_files(names: Names, template: Template) -> dict[str, str]:
    """Path -> text of every file."""
    module = names.module
    found = {
        "pyproject.toml": _pyproject(template),
        "README.md": _readme(template),
        f"{module}/__init__.py": _plugin(template),
        f"{module}/component.py": (
            f'"""What @seam@=@name@ does."""\n\n{template.part("code")}\n'
        ),
        f"{module}/py.typed": "",
        f"tests/test_{module}.py": (
            '"""The component keeps Interlock\'s contract, and does what it says."""\n\n'
            f"{template.part('test')}\n"
        ),
    }
    if template.part("modules"):
        name, _, text = template.part("modules").partition("\n")
        found[f"{module}/{name}.py"] = text + "\n"
    return {path: _filled(text, names, template) for path, text in found.items()}


def _filled(text: str, names: Names, template: Template) -> str:
    for placeholder, value in {
        "dist": names.distribution,
        "module": names.module,
        "name": names.choice,
        "Class": names.title,
        "seam": template.seam,
        "summary": template.part("summary"),
        "contract": str(CONTRACT),
    }.items():
        text = text.replace(f"@{placeholder}@", value)
    return text


def _pyproject(template: Template) -> str:
    return f'''\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "@dist@"
version = "0.1.0"
description = "A component for Interlock ({template.seam}): @summary@"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["interlock"]

[project.optional-dependencies]
test = ["pytest>=8", "hypothesis>=6.100"]

# Interlock finds the plugin here: a module that states its contract and implements hooks.
[project.entry-points.interlock]
@module@ = "@module@"

[tool.setuptools]
packages = ["@module@"]
package-data = {{ "@module@" = ["py.typed"] }}

[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = ["--import-mode=importlib"]
filterwarnings = ["error"]
'''


def _plugin(template: Template) -> str:
    imports = ["from dataclasses import dataclass"]
    if template.part("functions"):
        imports.insert(0, "from collections.abc import Iterable")
        imports.append("from typing import Any")
    own = template.part("imports")
    before, after = (own, "") if own.startswith("from interlock.core.cap") else ("", own)
    capabilities, _, models = before.partition("\nfrom interlock.core.model")
    core = [
        capabilities,
        "from interlock.core.component import Component",
        "from interlock.core.hooks import hookimpl",
        f"from interlock.core.model{models}" if models else after,
        "from interlock.core.options import option" if template.part("options") else "",
    ]
    parts = [
        '"""An Interlock plugin: the component `@name@` of the seam `@seam@`."""',
        "\n".join(imports),
        "\n".join(line for line in core if line),
        f"INTERLOCK_CONTRACT = @contract@\n"
        '"""The plugin contract this package was written for; Interlock refuses another one."""\n',
        _config(template),
        f"\n{_hook(template)}",
    ]
    text = "\n\n".join(parts) + "\n"
    return text + (f"\n\n{template.part('functions')}\n" if template.part("functions") else "")


def _config(template: Template) -> str:
    about = f"{template.part('summary')[0].upper()}{template.part('summary')[1:]}."
    options = f"\n{template.part('options')}" if template.part("options") else ""
    return (
        f'@dataclass(frozen=True)\nclass @Class@Config:\n    """{about}"""\n\n'
        f'    name: str = "@name@"{options}'
    )


def _hook(template: Template) -> str:
    seams = template.seams
    more = textwrap.indent(template.part("component"), " " * 12)
    component = (
        "        Component(\n"
        f"            seam={'seam' if len(seams) > 1 else repr_(seams[0])},\n"
        '            name="@name@",\n'
        "            config=@Class@Config,\n"
        '            build="@module@.component:build",  # imported only when it is chosen\n'
        '            summary="@summary@",\n' + (f"{more}\n" if more else "") + "        )\n"
    )
    if len(seams) > 1:
        listed = ", ".join(map(repr_, seams))
        component += f"        for seam in ({listed})\n"
    else:
        component = component.rstrip("\n") + ",\n"
    return (
        "@hookimpl\ndef interlock_components() -> list[Component]:\n"
        '    """What this package adds."""\n'
        f"    return [\n{component}    ]"
    )


def repr_(text: str) -> str:
    """A text in double quotes."""
    return f'"{text}"'


def _readme(template: Template) -> str:
    more = f" {template.part('try')}" if template.part("try") else ""
    key = template.seam.replace("/", ".")
    other = OTHERS[template.seam]
    option = next(
        (line.split(":")[0].strip() for line in template.part("options").splitlines()[:1]), ""
    )
    shown = f"\nIts options are those of `@Class@Config`: `{key}.{option}=...`.\n" if option else ""
    return f"""\
# @dist@

A component for [Interlock](https://pypi.org/project/interlock/): `{template.seam}=@name@`, @summary@.

    pip install .                                # from this folder
    interlock plugins                            # it is listed with this package's name
    interlock plugins check {template.seam}/@name@
    interlock run {template.seam}=@name@{more}
    interlock run -m {template.seam}=@name@,{other}{more}

The second-last command runs an engine with it, the last one runs it beside `{template.seam}={other}`.
{shown}
| file | what is in it |
|---|---|
| `pyproject.toml` | the entry point of the group `interlock`: where Interlock finds the module |
| `@module@/__init__.py` | the contract version, the options, and the hook that names the component; imports nothing heavy |
| `@module@/component.py` | the component: replace what it does, keep what its docstrings promise |
| `tests/test_@module@.py` | Interlock's conformance kit with one `make`, and what this component promises beyond it |

`pip install '.[test]'`, then `pytest`, runs the same contract as `interlock plugins check` and the
tests of its own. The interface is `{SEAMS[template.seam].interface.replace(":", ".")}`.
"""
