"""What a machine lacks to run a pair, on small checkpoints of the published layouts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.published.machine import locate, missing
from specmatrix.matrix.zoo.published.models import MODELS
from specmatrix.matrix.zoo.published.needs import GIB, needs
from specmatrix.matrix.zoo.published.pairs import PAIRS
from tests.support.published_layouts import shard, small_config, write

PAIR = PAIRS["llama-3.1-8b.eagle3"]
H100 = (80 * GIB,)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name in PAIR.models:
        write(root / MODELS[name].repo, name)
    return root


@pytest.fixture
def models(written, tmp_path, monkeypatch):
    """A folder with both checkpoints, and a registry with their small sizes."""
    for name in PAIR.models:
        monkeypatch.setitem(MODELS, name, replace(MODELS[name], config=small_config(name)))
    return shutil.copytree(written, tmp_path / "models")


@pytest.fixture
def target(models):
    return models / MODELS[PAIR.target].repo


def test_a_machine_that_has_everything(models):
    folders = locate(PAIR, H100, models)
    assert folders == {name: models / MODELS[name].repo for name in PAIR.models}
    assert missing(PAIR, H100, models) == []


@pytest.mark.parametrize(
    ("memory", "sentence"),
    [
        ((), r"llama-3.1-8b.eagle3 needs a GPU with 29.0 GiB of memory but this machine has none"),
        ((24 * GIB, 80 * GIB), r"llama-3.1-8b.eagle3 needs 29.0 GiB of GPU memory but this GPU has 24.0 GiB"),
    ],
)
def test_a_machine_with_too_little(memory, sentence, tmp_path):
    with pytest.raises(ConfigError, match=f"^checkpoint {sentence}$"):
        locate(PAIR, memory, tmp_path)
    first, *rest = missing(PAIR, memory, tmp_path)
    assert "29.0 GiB" in first
    assert [sentence.split(" is not in ")[0] for sentence in rest] == [model.repo for model in PAIR.models.values()]


def refused(models: Path, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        locate(PAIR, H100, models)
    assert "\n" not in str(caught.value)
    assert missing(PAIR, H100, models)[0] == str(caught.value)


def test_a_config_that_differs_from_the_published_one(models, target):
    raw = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(raw | {"rope_theta": 10000.0}))
    refused(models, r"config.json: rope must be RopeConfig\(theta=5.* for meta-llama/.*, got RopeConfig\(theta=10000.0")


def test_a_field_that_is_unknown(models):
    """The head's own RoPE: the file decides, and nothing is refused."""
    file = models / MODELS[PAIR.draft].repo / "config.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps(raw | {"rope_theta": 5e5}))
    assert missing(PAIR, H100, models) == []
    file.write_text(json.dumps(raw | {"intermediate_size": 96}))
    refused(models, r"intermediate_size must be 88 for lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge, got 96; ")


def test_files_that_need_more_than_was_known(models, target, monkeypatch):
    """Half of the target's files are there; together they need more memory than the GPU has."""
    monkeypatch.setitem(MODELS, PAIR.target, replace(MODELS[PAIR.target], sure=("architecture",)))
    small = needs(PAIR).total
    raw = json.loads((target / "config.json").read_text()) | {"vocab_size": 40_000}
    (target / "config.json").write_text(json.dumps(raw))
    tensors = {key: t for file in target.glob("*.safetensors") for key, t in load_file(file).items()}
    wide = {key: torch.zeros(40_000, 64) for key in ("model.embed_tokens.weight", "lm_head.weight")}
    shard(target, tensors | wide)
    head = models / MODELS[PAIR.draft].repo / "config.json"
    head.write_text(json.dumps(json.loads(head.read_text()) | {"vocab_size": 40_000}))
    monkeypatch.setitem(MODELS, PAIR.draft, replace(MODELS[PAIR.draft], sure=("architecture",)))
    with pytest.raises(ConfigError, match=r"eagle3 needs 4.\d GiB of GPU memory but this GPU has 4.\d "):
        locate(PAIR, (small,), models)
    assert "of GPU memory" in missing(PAIR, (small,), models)[0]


def test_a_partial_download(models, target):
    (target / "model-00003-of-00003.safetensors").unlink()
    refused(models, r"model-00003-of-00003.safetensors is missing; the checkpoint is incomplete$")


def test_a_shard_cut_short(models, target):
    file = target / "model-00001-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refused(
        models, r"model-00001-of-00003.safetensors cannot be read as safetensors \(.*\); it is truncated or damaged"
    )


def test_a_tensor_short(models, target):
    tensors = {key: t for file in target.glob("*.safetensors") for key, t in load_file(file).items()}
    shard(target, {key: t for key, t in tensors.items() if key != "model.norm.weight"})
    cause = "a file is missing or belongs to a different model"
    refused(models, rf"Instruct has [\d,]+ parameters, config.json implies [\d,]+; {cause}$")


def test_a_shard_without_a_tensor_of_the_index(models, target):
    shutil.copy(target / "model-00001-of-00003.safetensors", target / "model-00002-of-00003.safetensors")
    refused(models, r"model-00002-of-00003.safetensors lacks tensor '.*' that model.safetensors.index.json lists$")


def test_quantized_weights(models, target):
    tensors = {key: t for file in target.glob("*.safetensors") for key, t in load_file(file).items()}
    shard(target, tensors | {"lm_head.weight": tensors["lm_head.weight"].to(torch.float8_e4m3fn)})
    refused(models, r"tensor 'lm_head.weight' is stored as F8_E4M3; quantized weights are not supported")


def test_a_target_without_a_tokenizer(models, target):
    (target / "tokenizer.json").unlink()
    refused(models, r"tokenizer.json is missing; the checkpoint has no tokenizer$")


def test_a_draft_in_a_pickle(models):
    folder = models / MODELS[PAIR.draft].repo
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(models, r"has no safetensors weights, only pytorch_model.bin; convert it, pickles are never loaded$")
