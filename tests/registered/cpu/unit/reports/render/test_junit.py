"""A run as JUnit XML."""

from xml.etree import ElementTree

import pytest

from specmatrix.reports.render.run import view
from specmatrix.reports.render.terminal import junit
from specmatrix.reports.schema import GateResult, Waiver, WaiverRule
from specmatrix.reports.store import load


@pytest.fixture
def suite(tmp_path, write_report):
    def make(cells, **header: object):
        return ElementTree.fromstring(junit(view(load(write_report(tmp_path, cells, **header)))))

    return make


def test_each_state_is_what_a_reader_of_junit_knows(suite, make_cell):
    red = GateResult("lossless", "FAIL", message="3 tokens differ")
    cells = [
        make_cell("passes", seconds=1.5),
        make_cell("fails", gates=(red,)),
        make_cell("crashes", state="INFRA", gates=(), error="killed", traceback="Traceback: here"),
        make_cell("lacks", state="UNSUPPORTED", gates=(), error="no trees"),
        make_cell("known", gates=(red,), waived=Waiver("known", "2026-12-31", "a/b#1")),
        make_cell("expired", gates=(red,), waived=Waiver("old", "2026-08-31")),
    ]
    rules = (
        WaiverRule("known", "known", "2026-12-31", "lossless", issue="a/b#1"),
        WaiverRule("expired", "old", "2026-08-31"),
    )
    found = suite(cells, waivers=rules)
    assert {name: found.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6", "failures": "2", "errors": "1", "skipped": "2",
    }  # fmt: skip
    assert found.find("properties/property[@name='waived']").get("value") == "1"
    cases = {case.get("name"): case for case in found.iter("testcase")}
    assert cases["passes"].get("time") == "1.500" and len(cases["passes"]) == 0
    assert cases["fails"][0].tag == "failure" and cases["fails"][0].get("message") == "lossless: 3 tokens differ"
    assert "specmatrix run --cells id=fails" in (cases["fails"][0].text or "")
    assert cases["crashes"][0].tag == "error" and "Traceback: here" in (cases["crashes"][0].text or "")
    assert cases["lacks"][0].tag == cases["known"][0].tag == "skipped"
    assert cases["known"][0].get("message") == "waived: known (a/b#1), until 2026-12-31; lossless: 3 tokens differ"


def test_texts_that_xml_cannot_hold_do_not_break_it(suite, make_cell):
    cells = [make_cell("a", gates=(GateResult("lossless", "FAIL", message="got \x00\x1b[1m <b> & ]]>"),))]
    assert "<b> & ]]>" in (suite(cells).find("testcase/failure").get("message") or "")
