"""Files that are none: pipes and devices."""

import os
from pathlib import Path
from threading import Thread

import pytest

from specmatrix.engine.spec.builders import corpus_file
from specmatrix.errors import ConfigError
from specmatrix.files import read_text
from specmatrix.matrix.zoo.registry import resolve_path
from specmatrix.reports.schema import ReportError
from specmatrix.reports.store import ReportWriter
from tests.support.made_reports import made_header


def test_a_pipe_that_is_written_to_is_read_whole(tmp_path: Path) -> None:
    """As a shell's process substitution."""
    os.mkfifo(path := tmp_path / "fifo")
    writer = Thread(target=path.write_bytes, args=(b"x" * 300_000 + "é".encode(),))
    writer.start()
    assert read_text(path) == "x" * 300_000 + "é"
    writer.join()


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
