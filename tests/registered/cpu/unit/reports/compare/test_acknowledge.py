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
    ("text", "sentence"),
    [
        ("[", "acknowledged.json is not JSON: Expecting value"),
        ('[{"kind": "lost", "kind": "rewrite"}]', "is not JSON: key 'kind' occurs twice in one object$"),
        ("{}", "acknowledged.json must hold a list of acknowledgements, got dict"),
        ("[1]", "entry 1 must be an object with the strings kind, what, reason, expiry"),
        (json.dumps([GOOD, {**GOOD, "who": "me"}]), "entry 2 must be an object with the strings"),
        (json.dumps([{**GOOD, "reason": 3}]), "entry 1 must be an object with the strings"),
        (json.dumps([{**GOOD, "kind": "red"}]), "entry 1: kind must be one of rewrite, lost, got 'red'"),
        (json.dumps([{**GOOD, "reason": "  "}]), r"entry 1: the reason is empty; say why 'spec_version: \* -> v1' is"),
        (json.dumps([{**GOOD, "expiry": "soon"}]), "entry 1: expiry must be a date such as 2026-12-31, got 'soon'"),
    ],
)
def test_each_bad_file_is_named(tmp_path, text, sentence):
    path = tmp_path / "acknowledged.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=sentence):
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
