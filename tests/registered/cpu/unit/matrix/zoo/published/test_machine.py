"""What a machine lacks to run a pair, on small checkpoints of the published layouts."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from torch import Tensor

from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.published.machine import locate, missing
from specmatrix.matrix.zoo.published.models import MODELS
from specmatrix.matrix.zoo.published.needs import GIB, needs
from specmatrix.matrix.zoo.published.pairs import PAIRS
from tests.support.published_layouts import shard, small_config, write
from tests.support.refusals import refusal

PAIR = PAIRS["llama-3.1-8b.eagle3"]
H100 = (80 * GIB,)
PARTS = "model-0000{}-of-00003.safetensors"


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
    text = refusal(locate, PAIR, H100, models)
    assert re.search(sentence, text) and "\n" not in text and missing(PAIR, H100, models)[0] == text


def edited(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def weights(folder: Path) -> dict[str, Tensor]:
    return {key: t for file in folder.glob("*.safetensors") for key, t in load_file(file).items()}


def test_a_config_that_differs_from_the_published_one(models, target):
    """Of the head's own RoPE the file decides, and nothing is refused."""
    file = models / MODELS[PAIR.draft].repo / "config.json"
    edited(file, rope_theta=5e5)
    assert missing(PAIR, H100, models) == []
    edited(file, intermediate_size=96)
    refused(models, r"intermediate_size must be 88 for lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge, got 96; ")
    edited(target / "config.json", rope_theta=10000.0)
    refused(models, r"config.json: rope must be RopeConfig\(theta=5.* for meta-llama/.*, got RopeConfig\(theta=10000.0")


def test_files_that_need_more_than_was_known(models, target, monkeypatch):
    """Half of the target's files are there; together they need more memory than the GPU has."""
    small = needs(PAIR).total
    wide = {key: torch.zeros(40_000, 64) for key in ("model.embed_tokens.weight", "lm_head.weight")}
    shard(target, weights(target) | wide)
    for name in PAIR.models:
        edited(models / MODELS[name].repo / "config.json", vocab_size=40_000)
        monkeypatch.setitem(MODELS, name, replace(MODELS[name], sure=("architecture",)))
    assert re.search(
        r"eagle3 needs 4.\d GiB of GPU memory but this GPU has 4.\d ", refusal(locate, PAIR, (small,), models)
    )
    assert "of GPU memory" in missing(PAIR, (small,), models)[0]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def quantized(folder: Path) -> None:
    kept = weights(folder)
    shard(folder, kept | {"lm_head.weight": kept["lm_head.weight"].to(torch.float8_e4m3fn)})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda at: (at / PARTS.format(3)).unlink(), r"model-00003-of-00003.safetensors is missing; the checkpoint is"),
        (lambda at: cut(at / PARTS.format(1)), r"model-00001-of-00003.safetensors cannot be read as safetensors "),
        (
            lambda at: shard(at, {key: t for key, t in weights(at).items() if key != "model.norm.weight"}),
            r"has [\d,]+ parameters, config.json implies [\d,]+; a file is missing or belongs to a different model$",
        ),
        (
            lambda at: shutil.copy(at / PARTS.format(1), at / PARTS.format(2)),
            r"model-00002-of-00003.safetensors lacks tensor '.*' that model.safetensors.index.json lists$",
        ),
        (quantized, r"tensor 'lm_head.weight' is stored as F8_E4M3; quantized weights are not supported"),
        (lambda at: (at / "tokenizer.json").unlink(), r"tokenizer.json is missing; the checkpoint has no tokenizer$"),
    ],
)
def test_damaged_files_of_a_target_are_named(models, target, change, sentence):
    change(target)
    refused(models, sentence)


def test_a_draft_in_a_pickle(models):
    folder = models / MODELS[PAIR.draft].repo
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(models, r"has no safetensors weights, only pytorch_model.bin; convert it, pickles are never loaded$")
