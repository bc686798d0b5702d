"""What an end line tells of the lines is what going through them finds, and nothing else is believed."""

import json

import pytest

import specmatrix.reports.load
from specmatrix.reports.compare import compare
from specmatrix.reports.index import told
from specmatrix.reports.load import load
from specmatrix.reports.schema import ReportError

pytestmark = pytest.mark.register(est_seconds=2, tier="cpu", stage="pr")


@pytest.fixture
def large(monkeypatch):
    """Every report counts as a large one, of which the end line is believed."""
    monkeypatch.setattr(specmatrix.reports.load, "EAGER_BYTES", 100)


@pytest.fixture
def three(tmp_path, make_cell, write_report):
    states = {"a": "PASS", "b": "NOT MEASURED", "c": "INFRA"}
    return write_report(tmp_path / "run", [make_cell(name, state=state) for name, state in states.items()])


def rows(directory):
    return (directory / "report.jsonl").read_text().splitlines()


def put(directory, lines):
    directory.mkdir(exist_ok=True)
    (directory / "report.jsonl").write_text("".join(line + "\n" for line in lines))
    return directory


def ended(directory, changes):
    """The report with another index; a key that is None is left out."""
    *lines, last = rows(directory)
    end = json.loads(last)
    end["index"] = {key: value for key, value in (end["index"] | changes).items() if value is not None}
    return put(directory, [*lines, json.dumps(end)])


def without(directory, at):
    """A copy as older versions wrote it."""
    *lines, last = rows(directory)
    end = {key: value for key, value in json.loads(last).items() if key != "index"}
    return put(at, [*lines, json.dumps(end)])


def test_the_index_is_what_going_through_the_file_finds(tmp_path, specimen, write_report, large):
    directory = write_report(tmp_path / "run", specimen(stride=True).cells())
    quick, slow = load(directory), load(without(directory, tmp_path / "old"))
    assert quick._index.prints and not slow._index.prints
    assert quick._index._replace(prints="", crc32=None, data=b"") == slow._index._replace(data=b"")
    quick.confirm()
    assert list(quick) == list(slow)
    assert quick.red() == slow.red() != []


def test_fingerprints_and_bytes_find_the_same_lines(tmp_path, make_cell, write_report, large):
    base = write_report(tmp_path / "base", [make_cell("a", seconds=1.0), make_cell("b"), make_cell("c")])
    head = write_report(
        tmp_path / "head", [make_cell("c", witness={}), make_cell("b"), make_cell("a", seconds=2.5e-05)]
    )
    sides = [(load(base), load(without(base, tmp_path / "x"))), (load(head), load(without(head, tmp_path / "y")))]
    assert [mine.same_lines(theirs, "abc") for mine in sides[0] for theirs in sides[1]] == [["a", "b"]] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": None},
        {"ids": ["a", "b"]},
        {"ids": ["a", "b", "b"]},
        {"ids": ["a", "b", 3]},
        {"ids": "abc"},
        {"lengths": None},
        {"lengths": [1, 2]},
        {"lengths": [1, 2, 3]},
        {"lengths": [1, 2.0, 3]},
        {"states": "PNX"},
        {"states": "PN"},
        {"states": 7},
        {"prints": "0" * 47},
        {"prints": None},
        {"crc32": None},
    ],
)
def test_an_index_that_does_not_fit_is_not_believed(three, tmp_path, large, changes):
    whole = list(load(three))
    report = load(ended(three, changes))
    assert not report._index.prints and list(report) == whole


def test_lengths_that_add_up_are_whole_and_of_some_line():
    entry = {"ids": ["a", "b"], "lengths": [12, 0], "states": "PP", "prints": "0" * 32, "crc32": 0}
    data = b" " * 20
    assert told(data, entry, 5, 17) is None
    assert told(data, entry | {"lengths": [6, 6]}, 5, 17) is not None
    assert told(data, entry | {"lengths": [6, 6.0]}, 5, 17) is None
    assert told(data, [], 5, 17) is None


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"state":"INFRA"', '"state":"PASS" ', "line 4 is of cell 'c', PASS, and the end line says 'c', INFRA"),
        ('"id":"c"', '"id":"d"', "line 4 is of cell 'd', INFRA, and the end line says 'c', INFRA"),
    ],
)
def test_a_line_that_was_changed_afterwards_is_named_when_it_is_used(three, large, old, new, sentence):
    put(three, [line.replace(old, new, 1) for line in rows(three)])
    report = load(three)
    assert report["a"].id == "a"
    with pytest.raises(ReportError, match=rf"report.jsonl, {sentence}; the report was changed after it was written"):
        report["c"]


def test_a_comparison_sees_a_line_that_it_did_not_read(tmp_path, make_cell, write_report, large):
    sides = [write_report(tmp_path / name, [make_cell("a"), make_cell("b")]) for name in ("base", "head")]
    assert compare(*map(load, sides)).verdict == "green"
    put(sides[1], [line.replace('"id":"b","state":"PASS"', '"id":"b","state":"FAIL"') for line in rows(sides[1])])
    words = r"head/report.jsonl: its cells are not those that its end line tells; the report was changed after it was"
    with pytest.raises(ReportError, match=words):
        compare(*map(load, sides))


@pytest.mark.parametrize(("old", "new"), [(r"q\"1", r"z\"9"), ("INFRA", "PASS ")])
def test_a_line_whose_front_cannot_be_read_is_held_to_the_end_line(tmp_path, make_cell, write_report, large, old, new):
    directory = write_report(tmp_path, [make_cell('q"1', state="INFRA")])
    first, line, end = rows(directory)
    report = load(put(directory, [first, line.replace(old, new.rstrip(), 1) + " " * new.count(" "), end]))
    with pytest.raises(ReportError, match="is not what the end line says; the report was changed after it was written"):
        report['q"1']


def test_a_small_report_is_what_its_lines_say(three, tmp_path):
    changed = put(tmp_path / "changed", [line.replace('"INFRA"', '"PASS" ', 1) for line in rows(three)])
    assert load(changed).state("c") == "PASS"
    assert load(three).same_lines(load(changed), "abc") == ["a", "b"]
