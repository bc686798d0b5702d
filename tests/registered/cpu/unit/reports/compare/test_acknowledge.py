import json

import pytest

from specmatrix.reports.compare import Acknowledgement, read_acknowledgements
from specmatrix.reports.compare.acknowledge import Acknowledged
from specmatrix.reports.schema import ReportError

GOOD = {"kind": "rewrite", "what": "spec_version: * -> v1", "reason": "wanted", "expiry": "2026-12-31"}


def test_entries_read_back(tmp_path):
    path = tmp_path / "acknowledged.json"
    path.write_text(json.dumps([GOOD]))
    assert read_acknowledgements(path) == (Acknowledgement(**GOOD),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "Expecting value"),
        ('[{"kind": "lost", "kind": "rewrite"}]', "key 'kind' occurs twice"),
        (json.dumps([GOOD, {**GOOD, "who": "me"}]), r"unknown field `who` - at `\$\[1\]`"),
        (json.dumps([{**GOOD, "reason": 3}]), r"Expected `str`, got `int` - at `\$\[0\].reason`"),
        (json.dumps([{**GOOD, "kind": "red"}]), "Invalid enum value 'red'"),
        (json.dumps([{**GOOD, "reason": "  "}]), r"Expected `str` matching regex .* - at `\$\[0\].reason`"),
        (json.dumps([{**GOOD, "expiry": "2026-13-01"}]), "month must be in 1..12"),
        (json.dumps([{**GOOD, "expiry": "soon"}]), r"Expected `str` matching regex .* - at `\$\[0\].expiry`"),
    ],
)
def test_each_bad_file_is_named(tmp_path, text, said):
    path = tmp_path / "acknowledged.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=f"acknowledged.json is no list of acknowledgements: .*{said}"):
        read_acknowledgements(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ReportError, match=r"cannot read .*nothing.json: No such file or directory"):
        read_acknowledgements(tmp_path / "nothing.json")


def test_an_entry_holds_for_its_kind_pattern_and_time():
    entry = Acknowledgement(**GOOD)
    acknowledged = Acknowledged((entry,), "2026-12-31T10:00:00+00:00")
    assert acknowledged.unused() == ("rewrite spec_version: * -> v1",)
    assert acknowledged.reason("lost", "spec_version: v2 -> v1") == ""
    assert acknowledged.reason("rewrite", "page_size: 3 -> 4") == ""
    assert acknowledged.reason("rewrite", "spec_version: v2 -> v1") == "wanted"
    assert acknowledged.unused() == ()
    assert Acknowledged((entry,), "2027-01-01").reason("rewrite", "spec_version: v2 -> v1") == ""
