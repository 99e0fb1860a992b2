"""Code lines by folder: lines with code on them, without blank lines, comments and docstrings.

python benchmarks/code_lines.py --json docs/results/code_lines.json
"""

import argparse
import ast
import io
import json
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("conf", "driver", "plugins", "models", "study", "tests")
SKIPPED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(path: Path) -> int:
    """Code lines of one Python file."""
    source = path.read_text(encoding="utf-8")
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


def by_folder() -> dict[str, dict[str, int | str]]:
    """Total, and the largest file, of each part of the project."""
    kit = ROOT / "core" / "testing"
    parts = {
        "core (engine)": [p for p in ROOT.glob("core/**/*.py") if kit not in p.parents],
        "core/testing (conformance kit)": list(kit.glob("*.py")),
        **{n: list(ROOT.glob(f"{n}/**/*.py")) for n in FOLDERS},
    }
    report: dict[str, dict[str, int | str]] = {}
    for name, paths in parts.items():
        counted = sorted((code_lines(p), p.relative_to(ROOT).as_posix()) for p in paths)
        largest, path = counted[-1]
        total = sum(count for count, _ in counted)
        report[name] = {"code_lines": total, "largest_file": path, "largest_file_lines": largest}
    return report


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    args = parser.parse_args()
    report = by_folder()
    for name, row in report.items():
        print(f"{name:32} {row['code_lines']:6}  largest {row['largest_file_lines']:4} "
              f"{row['largest_file']}")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
