import json
from dataclasses import replace

import pytest

import specmatrix.reports.lines
import specmatrix.reports.load
from specmatrix.reports.codec import decode_cell, encode_cell
from specmatrix.reports.lines import Line, entry, plain_entries, same_but_for_time
from specmatrix.reports.load import load
from specmatrix.reports.schema import GateResult, ReportError

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")


def lines(directory):
    return (directory / "report.jsonl").read_text().splitlines()


def put(directory, rows):
    (directory / "report.jsonl").write_text("".join(row + "\n" for row in rows))


@pytest.fixture
def three(tmp_path, make_cell, write_report):
    return write_report(tmp_path / "run", [make_cell("a"), make_cell("b", state="FAIL"), make_cell("c")])


def test_a_report_reads_back_from_its_directory_and_its_file(three, make_cell, make_header):
    for report in (load(three), load(str(three / "report.jsonl"))):
        assert report.header == make_header()
        assert list(report) == [make_cell("a"), make_cell("b", state="FAIL"), make_cell("c")]
        assert "a" in report and "z" not in report and len(report) == 3
        assert [report.state(cell) for cell in report.ids()] == ["PASS", "FAIL", "PASS"]


def test_a_missing_place_is_named(tmp_path):
    with pytest.raises(ReportError, match=r"nowhere does not exist; give a report file or a directory"):
        load(tmp_path / "nowhere")
    with pytest.raises(ReportError, match=r"has no report.jsonl; it is not the directory of a finished run"):
        load(tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "report.jsonl").mkdir()
    with pytest.raises(ReportError, match=r"cannot read .*report.jsonl: Is a directory"):
        load(tmp_path)


def test_an_empty_file_is_no_report(tmp_path):
    put(tmp_path, [])
    with pytest.raises(ReportError, match="is empty; the run that wrote it did not finish"):
        load(tmp_path)


def test_another_schema_is_refused(three):
    rows = lines(three)
    put(three, [rows[0].replace('"schema":1', '"schema":3'), *rows[1:]])
    with pytest.raises(ReportError, match=r"report.jsonl, line 1: the report has schema 3, and this version reads"):
        load(three)


def test_a_first_line_that_is_no_json_is_named(three):
    put(three, ["<html>", *lines(three)[1:]])
    with pytest.raises(ReportError, match=r"line 1: broken at column 1: Expecting value"):
        load(three)


@pytest.mark.parametrize("keep", [1, 2, 3, 4])
def test_a_report_without_its_end_is_cut_off(three, keep):
    put(three, lines(three)[:keep])
    with pytest.raises(ReportError, match="has no end line; it was cut off while it was written or copied"):
        load(three)


def test_an_end_line_without_its_newline_is_cut_off(three):
    path = three / "report.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ReportError, match="has no end line"):
        load(three)


def test_a_report_up_to_the_limit_is_checked_whole(three, monkeypatch):
    rows = lines(three)
    put(three, [*rows[:2], rows[2].replace('"repro":', '"rep":'), *rows[3:]])
    size = (three / "report.jsonl").stat().st_size
    monkeypatch.setattr(specmatrix.reports.load, "EAGER_BYTES", size)
    with pytest.raises(ReportError, match="line 3"):
        load(three)
    monkeypatch.setattr(specmatrix.reports.load, "EAGER_BYTES", size - 1)
    assert len(load(three)) == 3


def test_every_cut_in_the_middle_of_a_line_is_seen(three):
    whole = (three / "report.jsonl").read_bytes()
    for size in range(1, len(whole), 97):
        (three / "report.jsonl").write_bytes(whole[:size])
        with pytest.raises(ReportError):
            load(three)


def test_a_number_of_cells_that_does_not_match_is_seen(three):
    rows = lines(three)
    put(three, [rows[0], *rows[2:]])
    with pytest.raises(ReportError, match="has 2 cells, and its end line says 3"):
        load(three)


def test_a_cell_that_comes_twice_is_seen(three):
    rows = lines(three)
    put(three, [*rows[:3], rows[1], rows[4]])
    with pytest.raises(ReportError, match=r"line 4: cell 'a' is in the report already"):
        load(three)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("", "line 3: broken at column 1: Expecting value"),
        ('{"kind":"ce', "line 3: broken at column 9: Unterminated string$"),
        ('{"kind":"cell","id":"b","state":"FAIL","axes":{"x" 1}}', "line 3: broken at column"),
        ('{"kind":"cell","id":"b","state":"FAIL","axes":{}}', "line 3: cell 'b' has no 'waived'"),
        ('{"kind":"cells","id":"b"}', "line 3: the line is not a cell"),
        ("[1]", "line 3: the line is not a cell"),
        ("<<<<<<< head", "line 3: broken at column 1"),
    ],
)
def test_a_broken_line_is_named_by_its_number(three, broken, sentence):
    rows = lines(three)
    put(three, [*rows[:2], broken, *rows[3:]])
    with pytest.raises(ReportError, match=sentence):
        load(three)


def test_a_line_that_is_no_text_is_named(three):
    data = (three / "report.jsonl").read_bytes().replace(b'"state":"FAIL"', b'"state":"\xff"')
    (three / "report.jsonl").write_bytes(data)
    with pytest.raises(ReportError, match="line 3: broken, it is not UTF-8 text"):
        load(three)


def test_a_large_report_names_its_broken_line_when_it_is_used(three, monkeypatch):
    rows = lines(three)
    put(three, [*rows[:2], rows[2].replace('"repro":', '"rep":'), *rows[3:]])
    monkeypatch.setattr(specmatrix.reports.load, "EAGER_BYTES", 100)
    report = load(three)
    assert report["a"].id == "a"
    with pytest.raises(ReportError, match=r"line 3: cell 'b' has no 'repro'"):
        report["b"]


def test_keys_in_any_order_and_with_spaces_read_the_same(three, monkeypatch):
    whole = load(three)
    rows = [json.loads(row) for row in lines(three)]
    put(
        three,
        [json.dumps(rows[0]), *(json.dumps(dict(reversed(row.items()))) for row in rows[1:-1]), json.dumps(rows[-1])],
    )
    monkeypatch.setattr(specmatrix.reports.load, "EAGER_BYTES", 100)
    other = load(three)
    for cell in whole.ids():
        assert other[cell] == whole[cell]
        assert other.state(cell) == whole.state(cell)
        assert other.effective(cell) == whole.effective(cell)
        assert other.axes(cell) == whole.axes(cell)


def test_fronts_of_lines_tell_what_the_whole_line_tells(tmp_path, specimen, write_report, monkeypatch):
    directory = write_report(tmp_path, specimen(stride=True).cells())
    whole = load(directory)
    monkeypatch.setattr(specmatrix.reports.load, "EAGER_BYTES", 100)
    front = load(directory)
    for cell in whole.ids():
        assert front.state(cell) == whole[cell].state
        assert front.axes(cell) == whole[cell].axes
        assert front.launch(cell)[1] == whole[cell].resolved
        assert (front.effective(cell) is None) == (whole[cell].state != "PASS")
    assert not front._parsed


def test_an_axis_named_like_a_key_does_not_mislead(tmp_path, make_cell, write_report, monkeypatch):
    odd = make_cell("odd", axes={"resolved": "yes", "expect": "no"}, resolved={"expect": "x", "topk": 4})
    monkeypatch.setattr(specmatrix.reports.load, "EAGER_BYTES", 100)
    report = load(write_report(tmp_path, [odd]))
    assert report.axes("odd") == odd.axes
    assert report.launch("odd")[1] == odd.resolved


def test_cells_put_together_from_shared_parts_are_those_of_whole_lines(tmp_path, specimen, write_report, monkeypatch):
    report = load(write_report(tmp_path, specimen(stride=True).cells()))
    whole = []
    monkeypatch.setattr(specmatrix.reports.lines, "_whole", lambda text: whole.append(text))
    for cell in report.ids():
        line = report._index.line(cell)
        assert report[cell] == report._parse(line)
        assert report[cell] == decode_cell(json.loads(report._data[line.start : line.end]))
    assert not whole


@pytest.mark.parametrize(
    "change",
    [
        {"witness": {"gates": [], "waived": 1}},
        {"requested": {"waived": None, "gates": [{"name": "x"}, {"name": "y"}]}},
        {"error": '],"error": }, "waived":null,"gates":[{"a"},{"b"}]'},
        {"gates": (GateResult("ledger", "PASS", {"rows": [{"a": 1}, {"b": 2}]}),)},
        {"gates": (GateResult("ledger", "PASS", message='},{"name":"x"'), GateResult("finish", "FAIL", {}, (0, 1)))},
        {"gates": ()},
        {"axes": {"odd": '"}, "resolved":'}},
    ],
)
def test_texts_that_look_like_keys_do_not_mislead(tmp_path, make_cell, write_report, change):
    odd = make_cell("odd", **change)
    assert load(write_report(tmp_path, [odd]))["odd"] == odd


def test_same_lines_ignore_only_the_running_time(tmp_path, make_cell, write_report):
    base = load(write_report(tmp_path / "base", [make_cell("a", seconds=1.0), make_cell("b"), make_cell("c")]))
    head = load(
        write_report(
            tmp_path / "head", [make_cell("a", seconds=2.5e-05), make_cell("b", error="x"), make_cell("c", witness={})]
        )
    )
    assert base.same_lines(head, "abc") == ["a"]


def test_effective_values_are_those_of_green_cells_that_ran(tmp_path, make_cell, write_report):
    cells = [make_cell("ran"), make_cell("red", state="FAIL"), make_cell("refused", resolved=None)]
    report = load(write_report(tmp_path, cells))
    assert report.effective("ran") == {"algorithm": "eagle3", "topk": "4", "spec_version": "v2", "batch": "ragged"}
    assert report.effective("red") is None
    assert report.effective("refused") is None


def test_launches_are_told_apart_line_by_line(tmp_path, make_cell, write_report, monkeypatch):
    """Neighbours with one launch, another, no launch, and one that only begins like the one before it."""
    monkeypatch.setattr(specmatrix.reports.load, "EAGER_BYTES", 100)
    shapes = [{"topk": 4}, {"topk": 4}, {"topk": 1}, None, {"topk": 1}, {"topk": 1, "page_size": 16}, {"topk": 1}]
    cells = [make_cell(f"c{index}", resolved=resolved) for index, resolved in enumerate(shapes)]
    report = load(write_report(tmp_path, cells))
    assert [report.launch(cell.id)[1] for cell in cells] == shapes
    assert [report[cell.id] for cell in cells] == cells
    ran = list(report.running(cell.id for cell in cells))
    assert [(cell, resolved) for cell, _, resolved in ran] == [(c.id, c.resolved) for c in cells if c.resolved]
    assert [key for _, key, _ in ran] == [report.launch(cell)[0] for cell, _, _ in ran]


def test_only_green_cells_run(tmp_path, make_cell, write_report):
    report = load(write_report(tmp_path, [make_cell("a", state="FAIL"), make_cell("b"), make_cell("c", resolved=None)]))
    assert [cell for cell, _, _ in report.running("abc")] == ["b"]


def test_cells_that_are_not_green_are_told_without_their_lines(tmp_path, make_cell, write_report, monkeypatch):
    monkeypatch.setattr(specmatrix.reports.load, "EAGER_BYTES", 100)
    cells = [make_cell("a"), make_cell("b", state="INFRA"), make_cell("c", state="NOT MEASURED"), make_cell("d")]
    file = write_report(tmp_path, cells) / "report.jsonl"
    # A line in another order of keys tells nothing at its front.
    turned = {"kind": "cell", "state": "FAIL"} | json.loads(encode_cell(make_cell("d", state="FAIL")))
    file.write_text(file.read_text().replace(encode_cell(cells[-1]), json.dumps(turned)))
    assert load(file).red() == ["b", "c", "d"]


def test_lines_are_the_same_where_only_the_running_time_differs(three, tmp_path):
    text = lines(three)
    moved = tmp_path / "moved"
    moved.mkdir()
    seconds = json.loads(text[1])["seconds"]
    rows = [text[0], text[1].replace(f'"seconds":{seconds}', '"seconds":98.5'), text[2].replace("FAIL", "PASS", 1)]
    put(moved, [*rows, *text[3:]])
    base, head = load(three), load(moved)
    assert text[1] != rows[1] and base.same_lines(head, ["a", "b", "c"]) == ["a", "c"]


def test_records_apart_leave_out_green_gates_and_the_witness_that_both_tell_alike(tmp_path, make_cell, write_report):
    same, red = GateResult("ledger", "PASS", {"pages": 3}), GateResult("session", "FAIL", {"wrong": 1}, message="apart")
    before = GateResult("acceptance", "PASS", {"length": 3.1})
    after = GateResult("acceptance", "PASS", {"length": 2.9})
    base = load(write_report(tmp_path / "base", [make_cell("a", gates=(same, red, before), state="FAIL")]))
    head = load(write_report(tmp_path / "head", [make_cell("a", gates=(same, red, after), state="FAIL")]))
    mine, theirs = base.apart(head, "a")
    assert (mine.gates, theirs.gates) == ((red, before), (red, after))
    assert mine == replace(base["a"], gates=mine.gates, witness={})
    assert theirs == replace(head["a"], gates=theirs.gates, witness={})
    assert base["a"].gates == (same, red, before) and base["a"].witness


def test_records_apart_keep_witnesses_that_differ(tmp_path, make_cell, write_report):
    base = load(write_report(tmp_path / "base", [make_cell("a", witness={"prefix.hit": 1})]))
    head = load(write_report(tmp_path / "head", [make_cell("a", witness={"prefix.hit": 2})]))
    assert [dict(record.witness) for record in base.apart(head, "a")] == [{"prefix.hit": 1}, {"prefix.hit": 2}]


@pytest.mark.parametrize("time", ["01", "1.", ".5", "1e", "true", '"1"', "null"])
def test_a_running_time_that_is_no_number_is_left_to_the_whole_line(three, tmp_path, time):
    text = lines(three)
    odd = tmp_path / "odd"
    odd.mkdir()
    seconds = json.loads(text[1])["seconds"]
    put(odd, [text[0], text[1].replace(f'"seconds":{seconds}', f'"seconds":{time}'), *text[2:]])
    with pytest.raises(ReportError, match=r"line 2: "):
        load(odd)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (b'{"batch":"single","steps":"auto"}', {("batch", "single"), ("steps", "auto")}),
        (b'{"batch":"single"}', {("batch", "single")}),
        (b'{"batch": "single","steps":"auto"}', None),
        (b'{"batch":"Single","steps":"auto"}', None),
        (b'{"batch":"single","steps":3}', None),
        (b'{"batch":3,"steps":"auto"}', None),
        (b'{"batch":"sin\\u0067le","steps":"auto"}', None),
        (b'{"batch":null}', None),
        (b"{}", None),
    ],
)
def test_entries_are_read_off_axes_only_where_the_writer_s_form_is_certain(text, entries):
    found = plain_entries(text)
    assert found == (None if entries is None else {entry(*each) for each in entries})
    if entries is not None:
        assert dict(entries) == json.loads(text)


def test_a_large_report_is_mapped_and_outlives_the_next_one_in_its_place(three, monkeypatch, make_cell, write_report):
    monkeypatch.setattr(specmatrix.reports.load, "EAGER_BYTES", 100)
    before = lines(three)
    report = load(three)
    write_report(three, [make_cell("z")])
    assert list(load(three).ids()) == ["z"]
    assert [report[cell].id for cell in report.ids()] == [json.loads(line)["id"] for line in before[1:-1]]


def test_a_line_that_has_to_be_parsed_whole_is_whole_apart(three, tmp_path):
    text = lines(three)
    body = json.loads(text[1])
    odd = tmp_path / "odd"
    odd.mkdir()
    put(odd, [text[0], json.dumps(dict(reversed(body.items()))), *text[2:]])
    base, head = load(three), load(odd)
    assert base.apart(head, "a") == (base["a"], head["a"]) and head["a"] == base["a"]


@pytest.mark.parametrize(
    ("mine", "theirs", "same"),
    [
        ("0.1}", "2.5e-05}", True),
        ("0.1}", '"soon"}', False),
        ('0.1,"more":1}', '0.25,"more":1}', True),
        ('0.1,"more":1}', '0.25,"more":2}', False),
        ("0.1}", '0.1,"more":1}', False),
    ],
)
def test_only_a_time_is_left_out_of_account(mine, theirs, same):
    data, other = ('{"id":"a","seconds":' + text for text in (mine, theirs))
    spans = ([Line(0, len(text), -1, None)] for text in (data, other))
    assert list(same_but_for_time(data.encode(), next(spans), other.encode(), next(spans))) == [same]
