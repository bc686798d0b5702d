"""Folders are removed with their process, even if it was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from specmatrix.temp_dir import LOCK, TempDir

OTHER = """
import sys
from specmatrix.temp_dir import TempDir
scratch = TempDir("test")
(scratch.path / "deep").mkdir()
(scratch.path / "deep" / "file").touch()
print(scratch.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The temporary directory of this process and of those that it starts."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_its_end(folder):
    with TempDir("test") as path:
        assert path.parent == folder and path.name.startswith("specmatrix-test-")
        assert [file.name for file in path.iterdir()] == [LOCK]
        (path / "file").touch()
    assert list(folder.iterdir()) == []


def test_folders_of_killed_processes_are_removed_and_those_of_live_ones_stay(folder):
    with TempDir("test") as mine:
        others = [
            subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        live, killed = others
        paths = [Path(other.stdout.readline().strip()) for other in others]
        killed.kill()
        killed.wait()
        assert {*folder.iterdir()} == {mine, *paths}
        with TempDir("test") as next_one:
            assert {*folder.iterdir()} == {mine, paths[0], next_one}
        live.communicate()
        assert list(folder.iterdir()) == [mine]
        killed.communicate()


def test_folders_of_others_stay(folder):
    strange = [folder / "specmatrix-of-a-user", folder / "else"]
    for path in strange:
        path.mkdir()
    (folder / "else" / LOCK).touch()
    (folder / "specmatrix-link").symlink_to(folder / "else")
    TempDir("test").close()
    assert sorted(path.name for path in folder.iterdir()) == ["else", "specmatrix-link", "specmatrix-of-a-user"]
    assert (folder / "else" / LOCK).exists()
