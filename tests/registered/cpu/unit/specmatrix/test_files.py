"""Files that are none: pipes into which nobody writes, and devices."""

import os
from pathlib import Path
from threading import Thread

import pytest

from specmatrix import files
from specmatrix.engine.spec.builders import corpus_file
from specmatrix.errors import ConfigError
from specmatrix.files import opened, read_bytes, read_text
from specmatrix.matrix.zoo.registry import resolve_path
from specmatrix.reports.compare import read_acknowledgements
from specmatrix.reports.schema import ReportError
from specmatrix.reports.store import ReportWriter, load
from tests.support.made_reports import made_header

SILENT = "it is a pipe, and nothing was written to it for 0.02 s"


@pytest.fixture
def fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "PATIENCE", 0.02)
    os.mkfifo(path := tmp_path / "fifo")
    return path


def test_a_pipe_without_a_writer_is_an_error(fifo: Path) -> None:
    with pytest.raises(OSError, match=SILENT):
        read_bytes(fifo)
    with pytest.raises(ReportError, match=f"^cannot read {fifo}: {SILENT}$"):
        load(fifo)
    with pytest.raises(ReportError, match=f"^cannot read {fifo}: {SILENT}$"):
        read_acknowledgements(fifo)


def test_a_pipe_that_stays_silent_is_an_error(fifo: Path) -> None:
    reader, writer = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), os.open(fifo, os.O_WRONLY)
    os.write(writer, b"[")
    with pytest.raises(OSError, match=SILENT):
        read_bytes(fifo)
    os.close(reader), os.close(writer)


def test_a_pipe_that_is_written_to_is_read_whole(tmp_path: Path) -> None:
    """As a shell's process substitution."""
    os.mkfifo(path := tmp_path / "fifo")
    writer = Thread(target=path.write_bytes, args=(b"x" * 300_000 + "é".encode(),))
    writer.start()
    assert read_text(path) == "x" * 300_000 + "é"
    writer.join()
    read, write = os.pipe()
    os.write(write, b"one\ntwo\n")
    os.close(write)
    with opened(Path(f"/dev/fd/{read}")) as file:
        assert list(file) == [b"one\n", b"two\n"]
    os.close(read)


def test_a_report_is_not_written_into_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.jsonl.partial")
    with pytest.raises(ReportError, match=f"^cannot write {tmp_path}/report.jsonl.partial: No such device or address$"):
        ReportWriter(tmp_path, made_header())


def test_a_corpus_that_is_no_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", Path("/dev/zero")):
        assert corpus_file(str(path), resolve_path) == path
    assert corpus_file("gsm-mini.jsonl", resolve_path) == Path("gsm-mini.jsonl")
    with pytest.raises(ConfigError, match=r"^model 'nothing' is neither a folder nor in the zoo"):
        corpus_file("nothing", resolve_path)
