"""What the page-size benchmark counts, against a walk over every slot."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "page_sizes.py"
REQUESTS = [(1, 1), (3, 6), (8, 9), (17, 2)]


@pytest.fixture(scope="module")
def page_sizes():
    spec = importlib.util.spec_from_file_location("page_sizes", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page_size", [1, 2, 8, 512])
def test_shares_are_those_of_a_walk_over_every_slot(page_sizes, page_size):
    slots = []
    for prompt, output in REQUESTS:
        end = prompt + output - 1  # the last token's rows are never computed
        for rows in range(prompt, end + 1):
            for slot in range((rows + page_size - 1) // page_size * page_size):
                slots.append("tokens" if slot < rows else "reserved" if slot < end else "internal")
    found = page_sizes.waste(*np.array(REQUESTS).T, page_size)
    assert found == {kind: pytest.approx(slots.count(kind) / len(slots)) for kind in found}


def test_a_run_of_slots_wastes_what_its_request_does_not_fill(page_sizes):
    rows = [(p + step, p + o - 1) for p, o in REQUESTS for step in range(o)]
    fixed, rounded = page_sizes.waste_of_runs(*np.array(REQUESTS).T).values()
    tokens = sum(row for row, _ in rows)
    assert fixed == pytest.approx(1 - tokens / (2048 * len(rows)))
    powers = sum(next(2**k for k in range(12) if 2**k >= end) for _, end in rows)
    assert rounded == pytest.approx(1 - tokens / powers)


def test_lengths_are_drawn_where_there_is_no_file(page_sizes, tmp_path):
    name, prompts, outputs = page_sizes.read_lengths(tmp_path / "none.csv.gz", 500)
    assert "is absent" in name
    assert len(prompts) == len(outputs) > 300
    assert (prompts + outputs).max() <= 2048
    assert min(prompts.min(), outputs.min()) >= 1
