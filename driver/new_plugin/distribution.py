"""A complete distribution, file by file, from a name and a template."""

import textwrap
from dataclasses import dataclass

from interlock.core.component import CONTRACT
from interlock.core.seams import SEAMS
from interlock.driver.new_plugin.template import Template, common

OTHERS = {
    "attention": "reference", "cache/allocator": "paged", "cache/index": "radix",
    "cache/eviction": "lru", "cache/tiers": "cpu", "cache/load": "always",
    "scheduler/order": "arrival", "scheduler/admission": "when_it_fits",
    "scheduler/chunking": "decode_first", "scheduler/victim": "latest", "spec": "ngram",
    "spec/verifier": "target_only", "spec/length": "fixed",
    "executor": "fixed", "workload": "synthetic",
}  # fmt: skip
"""What a new component is compared with first; `none` where it is not here."""


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
        "pyproject.toml": common("pyproject"),
        "README.md": common("readme"),
        f"{module}/__init__.py": _plugin(template),
        f"{module}/component.py": (f'"""What @seam@=@name@ does."""\n\n{template.part("code")}\n'),
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
        "try": template.part("try"),
        "key": template.seam.replace("/", "."),
        "other": OTHERS.get(template.seam, "none"),
        "interface": SEAMS[template.seam].interface.replace(":", "."),
    }.items():
        text = text.replace(f"@{placeholder}@", value)
    return text


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
        "INTERLOCK_CONTRACT = @contract@\n"
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
        f"            seam={'seam' if len(seams) > 1 else _quoted(seams[0])},\n"
        '            name="@name@",\n'
        "            config=@Class@Config,\n"
        '            build="@module@.component:build",  # imported only when it is chosen\n'
        '            summary="@summary@",\n' + (f"{more}\n" if more else "") + "        )\n"
    )
    if len(seams) > 1:
        listed = ", ".join(map(_quoted, seams))
        component += f"        for seam in ({listed})\n"
    else:
        component = component.rstrip("\n") + ",\n"
    return (
        "@hookimpl\ndef interlock_components() -> list[Component]:\n"
        '    """What this package adds."""\n'
        f"    return [\n{component}    ]"
    )


def _quoted(text: str) -> str:
    return f'"{text}"'
