import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmatrix.reports.codec import decode_cell, decode_header, encode_cell, encode_end, encode_header
from specmatrix.reports.schema import (
    CELL_KEYS,
    CellResult,
    GateResult,
    ProbeDemand,
    Reason,
    ReportError,
    Rewrite,
    Waiver,
)

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

TEXT = st.text(max_size=20)
JSON = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT


def full(make_cell):
    return make_cell(
        "eagle3.k4.ragged",
        state="FAIL",
        reasons=(Reason("spec_version", "v2", "by default"),),
        rewrites=(Rewrite("page_size", 3, 4, "pages are powers of two"),),
        waived=Waiver("known", "2026-12-31"),
        gates=(GateResult("accuracy", "FAIL", {"n": 20, "outcomes": "0110"}, (0.25, 0.75), "3 lost"),),
        error="one sentence",
    )


def test_cell_survives_the_round_trip(make_cell):
    cell = full(make_cell)
    assert decode_cell(json.loads(encode_cell(cell))) == cell


def test_header_survives_the_round_trip(make_header):
    for header in (make_header(), make_header(probes=ProbeDemand(("a", "b"), {"c": "why"}, 7))):
        assert decode_header(json.loads(encode_header(header))) == header


def test_header_of_an_older_report_demands_no_probes(make_header):
    body = json.loads(encode_header(make_header()))
    del body["probes"]
    assert decode_header(body) == make_header()


@pytest.mark.parametrize(
    ("demand", "sentence"),
    [
        (["a"], r"the header has probes = \['a'\], allowed is dict or null"),
        ({"hit": ["a"], "zero": {}}, "probes of the header has no 'cells'"),
        ({"hit": "a", "zero": {}, "cells": 1}, "probes of the header has hit = 'a', allowed is list"),
    ],
)
def test_a_demand_of_another_shape_is_refused(make_header, demand, sentence):
    with pytest.raises(ReportError, match=sentence):
        decode_header(json.loads(encode_header(make_header())) | {"probes": demand})


@given(name=TEXT, error=st.none() | TEXT, axes=st.dictionaries(TEXT, JSON, max_size=4), message=TEXT, value=JSON)
def test_any_text_survives_on_one_line(name, error, axes, message, value):
    cell = CellResult(
        name, "PASS", axes, None, "runs", "cpu", "pr", None, {}, "again", (Reason("f", value, message),),
        gates=(GateResult("ledger", "PASS", {"x": 1}, None, message),), error=error, seconds=1.5,
    )  # fmt: skip
    line = encode_cell(cell)
    assert "\n" not in line
    assert decode_cell(json.loads(line)) == cell


def test_keys_are_written_in_their_order(make_cell):
    assert tuple(json.loads(encode_cell(make_cell()))) == ("kind", *CELL_KEYS)


def test_end_line_counts():
    index = {"ids": ["a"]}
    assert json.loads(encode_end(7, {"x": 3}, index)) == {"kind": "end", "cells": 7, "probes": {"x": 3}, "index": index}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_numbers_that_json_does_not_know_are_refused(make_cell, bad):
    cell = make_cell("x", gates=(GateResult("acceptance", "PASS", {"length": bad}),))
    with pytest.raises(ReportError, match=r"cell 'x' cannot be written as JSON: .*; allowed are text, finite numbers"):
        encode_cell(cell)


def test_seconds_must_be_finite(make_cell):
    with pytest.raises(ReportError, match="cell 'x' cannot be written"):
        encode_cell(make_cell("x", seconds=float("nan")))


CELL_FAULTS = [
    ({"id": 3}, "cell 3 has id = 3, allowed is str"),
    ({"state": "OK"}, "has state = 'OK', allowed are PASS, FAIL, NOT MEASURED, INFRA"),
    ({"expect": "maybe"}, "has expect = 'maybe', allowed are runs, refused, rewritten"),
    ({"axes": []}, r"has axes = \[\], allowed is dict"),
    ({"resolved": "x"}, "has resolved = 'x', allowed is dict or null"),
    ({"seconds": True}, "has seconds = True, allowed is int or float"),
    ({"gates": {}}, "has gates = {}, allowed is list"),
    ({"gates": [7]}, "a gate of cell 'x' is 7, allowed is a JSON object"),
    ({"gates": [{"name": "ledger"}]}, "a gate of cell 'x' has no 'state'"),
    (
        {"gates": [{"name": "g", "state": "INFRA", "numbers": {}, "interval": None, "message": ""}]},
        "a gate of cell 'x' has state = 'INFRA', allowed are PASS, FAIL, NOT MEASURED",
    ),
    (
        {"gates": [{"name": "g", "state": "PASS", "numbers": {}, "interval": [1], "message": ""}]},
        r"a gate of cell 'x' has the interval \[1\], allowed are two numbers or null",
    ),
    (
        {"gates": [{"name": "g", "state": "PASS", "numbers": {}, "interval": None, "message": None}]},
        "a gate of cell 'x' has message = None, allowed is str",
    ),
    ({"reasons": [{"field": "f", "value": 1}]}, "a reason of cell 'x' has no 'because'"),
    ({"rewrites": [{"field": "f", "asked": 1, "got": 2}]}, "a rewrite of cell 'x' has no 'reason'"),
    ({"waived": {"reason": "r"}}, "the waiver of cell 'x' has no 'expiry'"),
]


@pytest.mark.parametrize(("change", "sentence"), CELL_FAULTS)
def test_each_fault_of_a_cell_is_named(make_cell, change, sentence):
    body = json.loads(encode_cell(make_cell("x"))) | change
    with pytest.raises(ReportError, match=sentence):
        decode_cell(body)


@pytest.mark.parametrize("key", CELL_KEYS)
def test_each_key_of_a_cell_is_needed(make_cell, key):
    body = json.loads(encode_cell(make_cell("x")))
    del body[key]
    with pytest.raises(ReportError, match=f"has no '{key}'"):
        decode_cell(body)


def test_keys_that_nobody_knows_are_ignored(make_cell):
    cell = make_cell("x")
    assert decode_cell(json.loads(encode_cell(cell)) | {"later": 1}) == cell


HEADER_FAULTS = [
    ({"kind": "cell"}, "the first line is not a report header"),
    ({"schema": 2}, "the report has schema 2, and this version reads schema 1"),
    ({"schema": None}, "the report has schema None, and this version reads schema 1"),
    ({"seed": "0"}, "the header has seed = '0', allowed is int"),
    ({"dirty": 0}, "the header has dirty = 0, allowed is bool"),
    ({"waivers": [{"cells": "a", "reason": "b"}]}, r"waivers\[0\] of the header has no 'expiry'"),
]


@pytest.mark.parametrize(("change", "sentence"), HEADER_FAULTS)
def test_each_fault_of_a_header_is_named(make_header, change, sentence):
    body = json.loads(encode_header(make_header())) | change
    with pytest.raises(ReportError, match=sentence):
        decode_header(body)


def test_a_first_line_that_is_no_object_is_no_header():
    with pytest.raises(ReportError, match="the first line is not a report header"):
        decode_header([1])


def test_a_cell_that_is_no_object_is_named():
    with pytest.raises(ReportError, match=r"cell None is \[\], allowed is a JSON object"):
        decode_cell([])


def test_thresholds_and_waivers_may_be_absent(make_header):
    body = json.loads(encode_header(make_header()))
    del body["thresholds"], body["waivers"]
    assert decode_header(body) == replace(make_header(), thresholds={}, waivers=())
