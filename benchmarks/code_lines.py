"""Code lines by folder: lines with code on them, without blank lines, comments and docstrings.

python benchmarks/code_lines.py --json docs/results/code_lines.json
"""

import argparse
import ast
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("conf", "driver", "plugins", "models", "study", "tests")


def code_lines(path: Path) -> int:
    """Code lines of one Python file."""
    source = path.read_text(encoding="utf-8")
    words, texts = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and _is_text(node.value):
            words.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.JoinedStr) or _is_text(node):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    stripped = enumerate(map(str.strip, source.splitlines()), 1)
    texts.update(number for number, line in stripped if line and not line.startswith("#"))
    return len(texts - words)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def by_folder(only: str = "") -> dict[str, dict[str, int | str]]:
    """Total, and the largest file, of each part of the project whose name begins so."""
    kit = ROOT / "core" / "testing"
    parts = {
        "core (engine)": [p for p in ROOT.glob("core/**/*.py") if kit not in p.parents],
        "core/testing (conformance kit)": list(kit.glob("*.py")),
        **{n: list(ROOT.glob(f"{n}/**/*.py")) for n in FOLDERS},
    }
    report: dict[str, dict[str, int | str]] = {}
    for name, paths in [part for part in parts.items() if part[0].startswith(only)]:
        counted = sorted((code_lines(p), p.relative_to(ROOT).as_posix()) for p in paths)
        largest, path = counted[-1]
        total = sum(count for count, _ in counted)
        report[name] = {"code_lines": total, "largest_file": path, "largest_file_lines": largest}
    return report


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--only", default="", metavar="FOLDER", help="count only what is there")
    args = parser.parse_args()
    report = by_folder(args.only)
    if not report:
        parser.error(f"--only {args.only}: known are core, {', '.join(FOLDERS)}")
    for name, row in report.items():
        print(f"{name:32} {row['code_lines']:6}  largest {row['largest_file_lines']:4} "
              f"{row['largest_file']}")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
