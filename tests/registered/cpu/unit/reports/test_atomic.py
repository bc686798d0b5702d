import resource
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from specmatrix.reports.schema import ReportError
from specmatrix.reports.store import replaced, write_text


def test_text_replaces_text_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "deep" / "page.md"
    write_text(path, "one")
    write_text(path, "zwei – 2")
    assert path.read_text() == "zwei – 2"
    assert [each.name for each in path.parent.iterdir()] == ["page.md"]


def test_half_a_character_is_a_question_mark(tmp_path):
    write_text(tmp_path / "page.md", "no file x\udcff")
    assert (tmp_path / "page.md").read_text() == "no file x?"


@pytest.fixture
def small_files():
    """A limit on the size of a file, as a full disk or a quota sets it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_leaves_the_old_text(tmp_path):
    path = tmp_path / "page.md"
    write_text(path, "old")
    with pytest.raises(ReportError, match=f"cannot write {path}: File too large"):
        write_text(path, "new" * 1_000_000)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["page.md"]


def test_another_exception_leaves_the_old_text_too(tmp_path):
    path = tmp_path / "page.md"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), replaced(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == ["page.md"]


def test_no_link_is_followed_and_no_other_writer_is_met(tmp_path):
    """A page's place, and every name beside it that somebody could guess, is a link to a file of the user."""
    mine, path = tmp_path / "mine", tmp_path / "out" / "page.md"
    mine.write_text("mine")
    path.parent.mkdir()
    for name in ("page.md", "page.md.partial", "page.partial", "page.md.new"):
        (path.parent / name).symlink_to(mine)
    texts, ready = [f"{number}" * 300_000 for number in range(4)], Barrier(4)

    def write(text: str) -> None:
        ready.wait()
        for _ in range(5):
            write_text(path, text)

    with ThreadPoolExecutor(4) as writers:
        done = writers.map(write, texts)
        seen = {path.read_text() for _ in range(50)}
        assert [*done] == [None] * 4
    assert seen <= {"mine", *texts} and path.read_text() in texts and not path.is_symlink()
    assert mine.read_text() == "mine" and len([*path.parent.iterdir()]) == 4


def test_what_a_screen_would_act_on_is_an_escape(tmp_path):
    write_text(tmp_path / "page.md", "a\x1b[31m\u202e\tb\r\n")
    assert (tmp_path / "page.md").read_bytes() == b"a\\x1b[31m\\u202e\tb\\r\n"


def test_a_place_that_is_no_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ReportError, match=r"cannot write .*file/page.md: (Not a directory|File exists)"):
        write_text(tmp_path / "file" / "page.md", "x")
