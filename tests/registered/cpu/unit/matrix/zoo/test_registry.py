import shutil
import subprocess
import sys

import pytest

from specmatrix.matrix.zoo import registry
from tests.support.refusals import refusal

NAME = "llama-mini-standalone"


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(registry.CHECKPOINTS, tmp_path / "zoo")
    return tmp_path / "zoo"


@pytest.mark.parametrize("name", registry.NAMES)
def test_the_committed_checkpoints_are_intact(name):
    registry.verify(name)


def test_all_checkpoints_together_are_small():
    files = [path for path in registry.CHECKPOINTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 25e6
    assert (registry.CHECKPOINTS / "llama-mini" / "model.safetensors").stat().st_size < 3e6


def test_every_file_is_in_the_checksums():
    files = [path for name in registry.NAMES for path in (registry.CHECKPOINTS / name).iterdir()]
    present = {path.relative_to(registry.CHECKPOINTS).as_posix() for path in files}
    assert present == set(registry.checksums())


def test_recording_a_copy_gives_the_committed_checksums(copy):
    registry.record(copy)
    assert (copy / "SHA256SUMS").read_text() == registry.CHECKSUMS.read_text()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda whole: whole[:1000], "is truncated: 1000 bytes of {}; restore"),
        (lambda whole: None, "is missing; restore it from the repository"),
        (lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]), "is changed: its sha256 is not the recorded one"),
    ],
)
def test_a_damaged_file_is_named(copy, change, text):
    weights = copy / NAME / "model.safetensors"
    whole = weights.read_bytes()
    weights.unlink()
    if (changed := change(whole)) is not None:
        weights.write_bytes(changed)
    assert f"model.safetensors {text.format(len(whole))}" in refusal(registry.verify, NAME, copy)


def test_an_unknown_name_lists_the_zoo_and_broken_checksum_lists_are_refused(tmp_path, monkeypatch):
    zoo = "zoo model 'gpt' is unknown; the zoo has llama-mini, llama-mini-standalone"
    assert zoo in refusal(registry.verify, "gpt")
    assert "model 'gpt' is neither a folder nor in the zoo (llama-mini, " in refusal(registry.resolve_path, "gpt")
    assert "model 'aaa" in refusal(registry.resolve_path, "a" * 5000)
    monkeypatch.setattr(registry, "CHECKSUMS", tmp_path / "sums")
    assert f"checksum file {tmp_path / 'sums'} is missing" in refusal(registry.checksums)
    (tmp_path / "sums").write_text("abc 5 file\n")
    assert "line 1 is 'abc 5 file'; it must be a sha256, a size and a file name" in refusal(registry.checksums)


def test_a_name_and_a_folder_resolve(tmp_path):
    assert registry.resolve_path(NAME) == registry.CHECKPOINTS / NAME
    assert registry.resolve_path(str(tmp_path)) == tmp_path


def test_every_target_has_a_file_of_the_oracle():
    assert tuple(name for name in registry.NAMES if registry.oracle_file(name).is_file()) == registry.TARGETS
    assert len({registry.oracle_file(target) for target in registry.TARGETS}) == len(registry.TARGETS)


def test_the_hash_names_the_weights_that_lie_there(copy):
    whole = registry.zoo_hash()
    assert len(whole) == 12 and registry.zoo_hash(copy) == whole
    weights = copy / NAME / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    changed = registry.zoo_hash(copy)
    weights.unlink()
    assert len({whole, changed, registry.zoo_hash(copy)}) == 3


def test_the_registry_imports_no_torch():
    code = "import sys, specmatrix.matrix.zoo.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
