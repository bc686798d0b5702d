import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import Lock, read, stage_cells, write

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


def test_reads_stages_and_notes(path):
    lock = read(path)
    assert lock.tables == "abc"
    assert {stage: [cell.id for cell in cells] for stage, cells in lock.cells.items()} == {
        "smoke": ["none"],
        "pr": ["eagle3.s3"],
        "nightly": ["standalone"],
    }
    assert lock.notes == {Cell.from_id("eagle3.s3"): "why"}


def test_a_stage_runs_the_cheaper_stages_too(path):
    assert [cell.id for cell in stage_cells("smoke", path)] == ["none"]
    assert [cell.id for cell in stage_cells("pr", path)] == ["none", "eagle3.s3"]
    assert [cell.id for cell in stage_cells("nightly", path)] == ["none", "eagle3.s3", "standalone"]


def test_writing_and_reading_are_inverse(path, tmp_path):
    lock = read(path)
    other = tmp_path / "other.lock"
    write(lock, other)
    assert read(other) == lock
    assert not list(tmp_path.glob("*.new"))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cells\.lock is missing; restore it or run `specmatrix lock --extend`"):
        read(tmp_path / "cells.lock")


def test_a_file_that_cannot_be_read_is_refused(path):
    path.write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert str(caught.value) == (
        f"lock file {path} cannot be read (it is not UTF-8 text); restore it from the repository"
    )
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\); restore it from the repository$"):
        read(path.parent)


@pytest.mark.parametrize("line", ["stage weekly", "none extra words", "eagle3 .s3"])
def test_a_line_without_meaning_is_refused(path, line):
    path.write_text(TEXT + line + "\n")
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert str(caught.value) == f"cells.lock line 11 is invalid: {line!r}; run `specmatrix lock --check`"


def test_a_cell_before_the_first_stage_is_refused(path):
    path.write_text("none\n" + TEXT)
    with pytest.raises(ConfigError, match="line 1 is invalid: 'none'"):
        read(path)


def test_an_unknown_stage_lists_the_stages(path):
    with pytest.raises(ConfigError) as caught:
        stage_cells("weekly", path)
    assert str(caught.value) == "stage 'weekly' is unknown; it must be one of smoke, pr, nightly"


def test_an_id_of_yesterdays_axes_is_kept_apart_and_never_run(path):
    path.write_text(TEXT + "medusa.s3\n")
    assert read(path).unreadable == ["medusa.s3"]
    with pytest.raises(ConfigError) as caught:
        stage_cells("pr", path)
    assert str(caught.value) == "cells.lock: 'medusa.s3' is not a cell; run `specmatrix lock --extend`"


def test_an_empty_lock_has_every_stage():
    assert Lock().upto("nightly") == []
