"""Plain values as JSON that strict readers read."""

import json
import math
from dataclasses import asdict, replace

import pytest

from interlock.study.analyse import analyse
from interlock.study.findings import Findings
from interlock.study.folder import StudyFolder
from interlock.study.plain_values import rebuild, strict
from interlock.study.spec import Observation
from tests.study.made import factors, grid, observe, study

ONE = factors(cache="none radix")


def refuse(constant):
    raise ValueError(constant)


def test_an_analysis_of_too_few_pairs_is_json_for_strict_readers_and_is_read_back(tmp_path):
    made, cells = study(ONE, repeats=1), grid(ONE)
    found = analyse(made, cells, observe(made, cells, lambda _: 0.0, aa=True))
    folder = StudyFolder(tmp_path)
    folder.write_findings(found)
    written = json.loads((tmp_path / "analysis.json").read_text(), parse_constant=refuse)
    assert written["noise"][0]["value"] is None
    again = folder.findings()
    assert math.isnan(again.noise[0].value)
    assert math.isnan(again.contrasts[0].estimate.low)
    assert again.contrasts[0].verdict == "too few pairs"
    assert strict(asdict(again)) == strict(asdict(found))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_null_is_nan_for_a_number_and_none_where_there_may_be_none(tmp_path, odd):
    seen = Observation("a", 0, 0, 0.0, {"x": odd}, machine={"load": odd}, quality={"y": 1.0})
    folder = StudyFolder(tmp_path)
    folder.write_observations([seen])
    json.loads((tmp_path / "observations.jsonl").read_text(), parse_constant=refuse)
    (again,) = folder.observations()
    assert again.values == {"x": None}
    assert math.isnan(again.machine["load"])
    assert replace(again, values={}, machine={}) == replace(seen, values={}, machine={})


def test_finite_findings_stay_what_they_are():
    made, cells = study(ONE, repeats=3), grid(ONE)
    found = analyse(made, cells, observe(made, cells, lambda _: 0.0, aa=True))
    assert rebuild(Findings, json.loads(json.dumps(strict(asdict(found))))) == found
