"""Where checkpoints are searched, and the error for each way in which they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from specmatrix.matrix.zoo.published.pairs import MODELS, TIP
from specmatrix.matrix.zoo.published.store import find, hub
from tests.support.refusals import refusal

QWEN = MODELS["qwen3-8b"]
LLAMA = MODELS["llama-3.1-8b-instruct"]
COMMIT = QWEN.revision
FETCH = f"`hf download Qwen/Qwen3-8B --revision {COMMIT}` fetches it"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def snapshot(cache: Path, commit: str) -> Path:
    folder = cache / "models--Qwen--Qwen3-8B" / "snapshots" / commit
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/b"}, "/c"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/x"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": ""}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_the_hubs_cache_is_where_huggingface_hub_has_it(environment, folder):
    assert hub(environment) == Path(folder)


def test_the_commit_that_was_meant(cache):
    snapshot(cache, "f" * 40)
    folder = snapshot(cache, COMMIT)
    assert find(QWEN) == folder


def test_the_tip_agrees_with_the_cache(cache):
    model = replace(QWEN, revision=TIP)
    folder = snapshot(cache, "f" * 40)
    (cache / "models--Qwen--Qwen3-8B" / "refs").mkdir()
    (cache / "models--Qwen--Qwen3-8B" / "refs" / "main").write_text("f" * 40 + "\n")
    assert find(model) == folder


def test_a_folder_of_the_user(tmp_path):
    folder = tmp_path / "Qwen" / "Qwen3-8B"
    folder.mkdir(parents=True)
    assert find(QWEN, tmp_path) == folder
    (tmp_path / "Qwen3-8B").mkdir()
    assert find(QWEN, tmp_path) == tmp_path / "Qwen3-8B"


def test_nothing_there(cache):
    assert refusal(find, QWEN) == f"Qwen/Qwen3-8B at {COMMIT} is not in {cache}; {FETCH}"
    assert refusal(find, LLAMA).endswith("fetches it after its licence is accepted")
    text = f"Qwen/Qwen3-8B is not in {cache}; `hf download Qwen/Qwen3-8B` fetches it"
    assert refusal(find, replace(QWEN, revision=TIP)) == text
    snapshot(cache, "f" * 40)
    there = f"which has only other commits of it ({'f' * 40})"
    assert refusal(find, QWEN) == f"Qwen/Qwen3-8B at {COMMIT} is not in {cache}, {there}; {FETCH}"


def test_a_folder_without_it(tmp_path):
    folder = tmp_path / "Qwen" / "Qwen3-8B"
    fetch = f"`hf download Qwen/Qwen3-8B --revision {COMMIT} --local-dir {folder}` fetches it"
    assert refusal(find, QWEN, tmp_path) == f"Qwen/Qwen3-8B is not in {tmp_path} (expected {folder}); {fetch}"
    nowhere = tmp_path / "nowhere"
    assert f"folder {nowhere} of checkpoints does not exist" in refusal(find, QWEN, nowhere)
