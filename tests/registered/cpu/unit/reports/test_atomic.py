import pytest

from specmatrix.reports.atomic import write_text
from specmatrix.reports.schema import ReportError


def test_text_replaces_text_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "deep" / "page.md"
    write_text(path, "one")
    write_text(path, "zwei – 2")
    assert path.read_text() == "zwei – 2"
    assert [each.name for each in path.parent.iterdir()] == ["page.md"]


def test_half_a_character_is_a_question_mark(tmp_path):
    write_text(tmp_path / "page.md", "no file x\udcff")
    assert (tmp_path / "page.md").read_text() == "no file x?"


def test_a_full_disk_leaves_the_old_text(tmp_path):
    path = tmp_path / "page.md"
    write_text(path, "old")
    (tmp_path / "page.md.partial").symlink_to("/dev/full")
    with pytest.raises(ReportError, match=f"cannot write {path}: No space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["page.md"]


def test_a_place_that_is_no_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ReportError, match=r"cannot write .*file/page.md: (Not a directory|File exists)"):
        write_text(tmp_path / "file" / "page.md", "x")
