"""Reports read back: what was written, or one sentence that names the file and the line."""

import gc
import gzip
import json
from hashlib import sha256
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import specmatrix.reports.store
from specmatrix.reports import schema
from specmatrix.reports.schema import MAX_NUMBER
from specmatrix.reports.store import ReportWriter, load

TEXT = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
STARTS = st.builds(
    schema.StartRecord,
    requested=OBJECT,
    resolved=st.none() | OBJECT,
    resolved_hash=st.none() | TEXT,
    reasons=st.lists(st.builds(schema.ReasonRecord, TEXT, JSON, TEXT), max_size=2).map(tuple),
    rewrites=st.lists(st.builds(schema.RewriteRecord, TEXT, JSON, JSON, TEXT), max_size=2).map(tuple),
)
INTERVALS = st.lists(st.floats(-MAX_NUMBER, MAX_NUMBER), min_size=2, max_size=2).map(sorted).map(tuple)
GATES = st.builds(schema.GateResult, TEXT, st.sampled_from(schema.GATE_STATES), OBJECT, st.none() | INTERVALS, TEXT)
DAYS = st.dates().map(str)
REASON = TEXT.map("x{}".format)


def cell_of(state, gates, error, **parts: object) -> schema.CellResult:
    """A cell whose gates and error are those of its state."""
    judged = state in schema.GATE_STATES
    gates = (*(replace(gate, state=state) for gate in gates), schema.GateResult("last", state)) if judged else ()
    error = None if state == "PASS" else error if judged else error or "no machine"
    return schema.CellRecord(state=state, gates=gates, error=error, **parts)


def cells_of(starts: list[schema.StartRecord]) -> st.SearchStrategy[schema.CellResult]:
    return st.builds(
        cell_of,
        id=TEXT,
        state=st.sampled_from(get_args(schema.CellState)),
        start=st.sampled_from(starts),
        axes=st.dictionaries(TEXT, TEXT, max_size=3),
        repro=TEXT,
        expect=st.sampled_from([each for each in get_args(schema.Expect) if each != "refused"]),
        waived=st.none() | st.builds(schema.Waiver, REASON, DAYS),
        gates=st.lists(GATES, max_size=3, unique_by=lambda gate: gate.name),
        evidence=st.dictionaries(TEXT, st.integers(min_value=1), max_size=3),
        error=st.none() | TEXT,
        seconds=st.integers(0, 10**9).map(lambda micros: micros / 10**6),
    )


CELLS = st.lists(STARTS, min_size=1, max_size=3).flatmap(
    lambda starts: st.lists(cells_of(starts), max_size=4, unique_by=lambda cell: cell.id)
)
HEADERS = st.builds(
    schema.Header, tier=TEXT, stage=TEXT, seed=st.integers(), created=st.datetimes().map("{}+00:00".format),
    commit=TEXT, dirty=st.booleans(),
    versions=st.dictionaries(TEXT, TEXT, max_size=2), host=OBJECT, lock_hash=TEXT, data_hash=TEXT, zoo_hash=TEXT,
    thresholds=st.dictionaries(TEXT, OBJECT, max_size=2),
    waivers=st.lists(st.builds(schema.WaiverRule, TEXT, REASON, DAYS), max_size=2).map(tuple),
    counters=st.none()
    | st.builds(
        schema.CounterDemand, st.lists(TEXT, max_size=2).map(tuple), st.dictionaries(TEXT, TEXT, max_size=2),
        st.integers(min_value=0),
    ),
)  # fmt: skip


@pytest.fixture
def three(tmp_path, make_cell, write_report):
    """Header, start, cells a, b and c, end: lines 1 to 6."""
    return write_report(tmp_path / "run", [make_cell("a"), make_cell("b", state="FAIL"), make_cell("c")])


@pytest.mark.parametrize("examples", [25, pytest.param(500, marks=pytest.mark.nightly)])
def test_any_records_are_read_back_as_they_were_written(tmp_path, examples):
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(header=HEADERS, cells=CELLS)
    def read_back(header, cells):
        rules = tuple(
            schema.WaiverRule("no_axis!=x", cell.waived.reason, cell.waived.expiry) for cell in cells if cell.waived
        )
        header = replace(header, waivers=header.waivers + rules)
        with ReportWriter(tmp_path, header) as writer:
            for cell in cells:
                writer.write(cell)
        report = load(tmp_path)
        assert (report.header, list(report)) == (header, cells)
        assert report.same(report) == [cell.id for cell in cells if cell.state != "INFRA"]

    read_back()


def test_a_report_reads_back_from_its_directory_and_its_file(three, make_cell, make_header):
    for report in (load(three), load(str(three / "report.jsonl"))):
        assert report.header == make_header()
        assert list(report) == [make_cell("a"), make_cell("b", state="FAIL"), make_cell("c")]
        assert "a" in report and "z" not in report and len(report) == 3
        assert (report.red(), report["b"].state) == (["b"], "FAIL")


def test_a_place_without_a_report_is_named(tmp_path):
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(schema.ReportError, match=r"cannot read .*: No such file or directory; give the"):
            load(place)
    (tmp_path / "report.jsonl").mkdir()
    with pytest.raises(schema.ReportError, match=r"cannot read .*report.jsonl: Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "<html>\n", "{}\n", "[1]\n", '{"kind":"cell"}\n', "PK\x03\x04", "\n\n", "\ufeff{}\n", "[" * 100_000]
)
def test_a_file_that_is_no_report_is_named(tmp_path, text):
    (tmp_path / "report.jsonl").write_text(text)
    with pytest.raises(
        schema.ReportError, match=r"report.jsonl: its first line is not the header of a report of schema 5"
    ):
        load(tmp_path)


@pytest.mark.parametrize("number", [1, 4, 6, 10**30])
def test_a_report_of_another_schema_is_refused(three, resealed, number):
    resealed(three / "report.jsonl", (f'"schema":{schema.SCHEMA}', f'"schema":{number}'))
    with pytest.raises(schema.ReportError, match=r"not the header of a report of schema 5: .* `\$\.schema`"):
        load(three)


def test_every_cut_and_every_missing_line_is_seen(three):
    whole = (three / "report.jsonl").read_bytes()
    for size in [*range(1, len(whole), 97), len(whole) - 2]:
        (three / "report.jsonl").write_bytes(whole[:size])
        with pytest.raises(
            schema.ReportError, match=r"not the header of a report|no end line, so it was cut off while it was"
        ):
            load(three)
    lines = whole.splitlines(keepends=True)
    for number in range(1, 5):
        (three / "report.jsonl").write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        with pytest.raises(schema.ReportError, match="was changed after it was written"):
            load(three)


@pytest.mark.parametrize(("old", "new"), [('"FAIL"', '"PASS"'), (":256}", ":255}"), ("\n", "\n ")])
def test_a_report_that_was_changed_after_it_was_written_is_refused(three, old, new):
    path = three / "report.jsonl"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(
        schema.ReportError, match=r"report.jsonl was changed after it was written, or copied badly; run "
    ):
        load(three)


def test_the_digest_is_the_sha256_of_all_lines_before_the_end_line(three):
    *rows, end = (three / "report.jsonl").read_bytes().splitlines(keepends=True)
    assert json.loads(end)["digest"] == sha256(b"".join(rows)).hexdigest()


FAULTS = [
    ('"kind":"start"', '"kind":"header"', r"Invalid value 'header' - at `\$\[0\].kind`"),
    ('{"kind":"cell"', '<<<<<<< head\n{"kind":"cell"', "JSON is malformed"),
    ('{"kind":"cell"', '[1]\n{"kind":"cell"', "Expected `object`, got `array`"),
    ('"state":"PASS"', '"state":"OK"', "Invalid enum value 'OK'"),
    ('"start":0', '"start":1', "cell 'a' has no start"),
    ('"gates":[{', '"gates":[4,{', "Expected `object`, got `int`"),
    ('"name":"ledger","state":"PASS"', '"name":"ledger","state":"OK"', "Invalid enum value 'OK'"),
    ('"name":"ledger",', '"name":4,', "Expected `str`, got `int`"),
    ('"evidence":{', '"evidence":[],"evidence":{', "Expected `object`, got `array`"),
    ('"start":0', '"start":-1', "Expected `int` >= 0"),
    ('"id":"b"', '"id":"a"', "has 2 cells, and its end line says 3"),
    ('"repro":', '"repo":', "Object contains unknown field `repo`"),
    ('"topk":"4"', '"topk":4', "Expected `str`, got `int`"),
    (":256}", ":1e999}", "Number out of range"),
    (":256}", f":{'[' * 200_000}{']' * 200_000}}}", "maximum recursion depth exceeded"),
    (":12}", ":-1}", "Expected `int` >= 0"),
    ('"seconds":0.25', '"seconds":1e308', "Expected `float` <= 1000000000.0"),
]


@pytest.mark.parametrize(("old", "new", "words"), FAULTS, ids=range(len(FAULTS)))
def test_a_line_that_no_report_has_is_refused(three, resealed, old, new, words):
    path = three / "report.jsonl"
    resealed(path, (old, new))
    with pytest.raises(schema.ReportError, match=rf"report.jsonl.*{words}"):
        load(three)
    assert gc.isenabled()


def test_a_line_that_is_no_text_is_named(three):
    *lines, end = (three / "report.jsonl").read_bytes().replace(b'"id":"b"', b'"id":"\xff"').splitlines(keepends=True)
    end = json.dumps(json.loads(end) | {"digest": sha256(b"".join(lines)).hexdigest()}).encode() + b"\n"
    (three / "report.jsonl").write_bytes(b"".join([*lines, end]))
    with pytest.raises(schema.ReportError, match="invalid start byte"):
        load(three)


def test_keys_in_any_order_and_with_spaces_read_the_same(three, resealed):
    whole = load(three)
    path = three / "report.jsonl"
    rows = map(json.loads, path.read_text().splitlines())
    path.write_text("".join(json.dumps(dict(reversed(row.items()))) + "\n" for row in rows))
    resealed(path)
    turned = load(three)
    assert list(turned) == list(whole)
    assert [turned.values(cell) for cell in turned.lines] == [whole.values(cell) for cell in whole.lines]


def test_cells_are_the_same_where_only_the_running_time_differs(tmp_path, make_cell, write_report):
    base = [make_cell(name, seconds=1.0) for name in "abcdef"]
    slow = (schema.GateResult("ledger", "PASS", {"verbs": 40, "seconds": 3}), *make_cell().gates[1:])
    head = [
        make_cell("a", seconds=2.5e-05), make_cell("b", error="x"), make_cell("c", evidence={}),
        make_cell("d", resolved={"topk": 1}), make_cell("e", gates=make_cell().gates[:1]), make_cell("f", gates=slow),
    ]  # fmt: skip
    sides = [load(write_report(tmp_path / name, cells)) for name, cells in (("base", base), ("head", head))]
    assert sides[0].same(sides[1]) == ["a"]


def test_equal_values_under_other_names_are_not_the_same(tmp_path, make_cell, write_report):
    renamed = (schema.GateResult("ledger", "PASS", {"pages": 40}), *make_cell().gates[1:])
    base = [make_cell("a"), make_cell("b"), make_cell("c")]
    head = [make_cell("a"), make_cell("b", gates=renamed), make_cell("c", evidence={"drafted": 12})]
    first, second = (load(write_report(tmp_path / name, cells)) for name, cells in (("base", base), ("head", head)))
    assert first.same(second) == ["a"]
    alone = load(write_report(tmp_path / "alone", head[1:2]))
    assert first.same(alone) == [] and load(write_report(tmp_path / "plain", base[1:2])).same(alone) == []
    turned = load(write_report(tmp_path / "turned", [make_cell("z", gates=renamed, evidence={"drafted": 1}), *base]))
    assert first.same(turned) == ["a", "b", "c"], "they follow another cell"
    other = load(write_report(tmp_path / "other", base, axes={"tp": "2"}))
    assert first.same(other) == [], "an axis that no line names"


def test_effective_values_are_those_of_green_cells_that_ran(tmp_path, make_cell, write_report):
    cells = [make_cell("ran"), make_cell("red", state="FAIL"), make_cell("refused", resolved=None)]
    report = load(write_report(tmp_path, cells))
    ran = {"algorithm": "eagle3", "topk": "4", "spec_version": "v2", "batch": "mixed_lengths"}
    assert report.effective("ran") == ran
    assert report.effective("red") is report.effective("refused") is None
    assert report.values("red") == report.effective("ran")
    assert report.values("refused")["spec_version"] == "auto"


def test_a_compressed_report_reads_as_the_plain_one(tmp_path, make_cell, write_report):
    plain = write_report(tmp_path, [make_cell("a"), make_cell("b")]) / "report.jsonl"
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(load(packed)) == list(load(plain)) and load(packed).header == load(plain).header


@pytest.mark.parametrize("keep", [12, -9])
def test_a_compressed_report_that_was_cut_off_is_named(tmp_path, make_cell, write_report, keep):
    plain = write_report(tmp_path, [make_cell("a")]) / "report.jsonl"
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes())[:keep])
    with pytest.raises(schema.ReportError, match=r"cannot read .*packed\.jsonl\.gz: Compressed file ended"):
        load(packed)


def test_a_compressed_file_without_an_end_is_refused(tmp_path, monkeypatch):
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(b"0" * 100_000))
    monkeypatch.setattr(specmatrix.reports.store, "MAX_BYTES", 50_000)
    with pytest.raises(schema.ReportError, match=r"cannot read .*packed\.jsonl\.gz: File too large$"):
        load(packed)
