import shutil
import subprocess
import sys

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo import registry

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
    assert sum(path.stat().st_size for path in files) < 14e6
    assert (registry.CHECKPOINTS / "llama-mini" / "model.safetensors").stat().st_size < 3e6


def test_every_file_is_in_the_checksums():
    present = {
        path.relative_to(registry.CHECKPOINTS).as_posix()
        for name in registry.NAMES
        for path in (registry.CHECKPOINTS / name).iterdir()
    }
    assert present == set(registry.checksums())


def test_recording_a_copy_gives_the_committed_checksums(copy):
    registry.record(copy)
    assert (copy / "SHA256SUMS").read_text() == registry.CHECKSUMS.read_text()


def test_a_truncated_file_is_named_with_its_sizes(copy):
    weights = copy / NAME / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    with pytest.raises(ConfigError, match=rf"model.safetensors is truncated: 1000 bytes of {len(whole)}; restore"):
        registry.verify(NAME, copy)


def test_a_missing_file_is_named(copy):
    (copy / NAME / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json is missing; restore it from the repository"):
        registry.verify(NAME, copy)


def test_a_changed_byte_is_noticed(copy):
    weights = copy / NAME / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ConfigError, match=r"model\.safetensors is changed: its sha256 is not the recorded one"):
        registry.verify(NAME, copy)


def test_an_unknown_name_lists_the_zoo():
    with pytest.raises(ConfigError, match="zoo model 'gpt' is unknown; the zoo has llama-mini, llama-mini-standalone"):
        registry.verify("gpt")
    with pytest.raises(ConfigError, match="model 'gpt' is neither a folder nor in the zoo \\(llama-mini, "):
        registry.resolve_path("gpt")


def test_a_name_and_a_folder_resolve(tmp_path):
    assert registry.resolve_path(NAME) == registry.CHECKPOINTS / NAME
    assert registry.resolve_path(str(tmp_path)) == tmp_path


def test_broken_checksum_lists_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"checksum file .*none is missing"):
        registry.checksums(tmp_path / "none")
    (tmp_path / "sums").write_text("abc 5 file\n")
    with pytest.raises(ConfigError, match="line 1 is 'abc 5 file'; it must be a sha256, a size and a file name"):
        registry.checksums(tmp_path / "sums")


def test_every_target_has_a_file_of_the_oracle():
    assert registry.TARGETS == ("llama-mini", "qwen3-mini", "deepseek-mini", "mistral-mini")
    files = [registry.oracle_file(target) for target in registry.TARGETS]
    assert all(file.is_file() for file in files) and len(set(files)) == 4


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
