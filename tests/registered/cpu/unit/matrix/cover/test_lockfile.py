import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import Lock, read, stage_cells, write
from tests.support.refusals import refusal

TEXT = """\
# head
tables abc

stage smoke
none
stage pr
# why
eagle3.s3
stage nightly
standalone
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "cells.lock"
    file.write_text(TEXT)
    return file


def test_reads_stages_and_notes_and_writes_what_it_reads(path, tmp_path):
    lock, other = read(path), tmp_path / "other.lock"
    assert lock.tables == "abc" and lock.notes == {Cell.from_id("eagle3.s3"): "why"}
    known = {"smoke": ["none"], "pr": ["eagle3.s3"], "nightly": ["standalone"]}
    assert {stage: [cell.id for cell in cells] for stage, cells in lock.cells.items()} == known
    write(lock, other)
    assert read(other) == lock and not list(tmp_path.glob("*.new"))


def test_a_stage_runs_the_cheaper_stages_too(path):
    for count, stage in enumerate(("smoke", "pr", "nightly"), start=1):
        assert [cell.id for cell in stage_cells(stage, path)] == ["none", "eagle3.s3", "standalone"][:count]


def test_a_missing_file_or_one_that_cannot_be_read_is_refused(path):
    missing = refusal(read, path.with_name("none.lock"))
    assert missing.endswith("none.lock is missing; restore it or run `specmatrix lock --extend`")
    path.write_bytes(b"# caf\xe9\n")
    text = "lock file {} cannot be read ({}); restore it from the repository"
    assert refusal(read, path) == text.format(path, "it is not UTF-8 text")
    assert refusal(read, path.parent) == text.format(path.parent, "Is a directory")


@pytest.mark.parametrize(
    ("text", "place", "line"),
    [(TEXT + line, 11, line) for line in ("stage weekly", "none extra words", "eagle3 .s3")]
    + [("none\n" + TEXT, 1, "none")],
)
def test_a_line_without_meaning_is_refused(path, text, place, line):
    path.write_text(text + "\n")
    assert refusal(read, path) == f"cells.lock line {place} is invalid: {line!r}; run `specmatrix lock --check`"


def test_an_unknown_stage_and_an_id_of_yesterdays_axes_are_refused(path):
    assert refusal(stage_cells, "weekly", path) == "stage 'weekly' is unknown; it must be one of smoke, pr, nightly"
    path.write_text(TEXT + "medusa.s3\n")
    assert read(path).unreadable == ["medusa.s3"]
    assert refusal(stage_cells, "pr", path) == "cells.lock: 'medusa.s3' is not a cell; run `specmatrix lock --extend`"


def test_an_empty_lock_has_every_stage():
    assert Lock().upto("nightly") == []
