"""Reading safetensors: dtypes, shards, and every way in which a file can be wrong."""

from __future__ import annotations

import json
import re
import weakref

import pytest
import torch
from safetensors.torch import save_file

from specmatrix.engine.models.weights import WeightReader, has_weights, load_weights, numbered, tensor_names
from specmatrix.errors import ConfigError

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16), "n": torch.arange(3)}
INDEX = "model.safetensors.index.json"


def shards(folder, **promised: str):
    save_file({"a": TENSORS["a"]}, folder / "one.safetensors")
    save_file({"b": TENSORS["b"]}, folder / "two.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"} | promised}))


def test_floats_are_cast_and_integers_kept(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    weights = load_weights(tmp_path, "cpu", torch.float16)
    assert {name: t.dtype for name, t in weights.items()} == {"a": torch.float16, "b": torch.float16, "n": torch.int64}
    assert torch.equal(weights["a"].float(), TENSORS["a"])


def test_what_chooses_between_near_equals_keeps_its_precision(tmp_path):
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    save_file({name: TENSORS["a"].clone(), "a": TENSORS["a"]}, tmp_path / "model.safetensors")
    weights = load_weights(tmp_path, "cpu", torch.bfloat16)
    assert (weights[name].dtype, weights["a"].dtype) == (torch.float32, torch.bfloat16)


def test_only_the_tensors_under_a_prefix(tmp_path):
    shards(tmp_path, c="two.safetensors")  # which is missed only where it is wanted
    (tmp_path / "one.safetensors").unlink()
    assert set(load_weights(tmp_path, "cpu", torch.float32, ("b", "x."))) == {"b"}
    assert load_weights(tmp_path, "cpu", torch.float32, ("x.",)) == {}
    whole = tmp_path / "whole"
    whole.mkdir()
    save_file(TENSORS, whole / "model.safetensors")
    assert set(load_weights(whole, "cpu", torch.float32, ("a",))) == {"a"}


BROKEN = "is not a safetensors index; it must hold a weight_map from tensor names to files"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: None, "has no weights; it must contain model.safetensors or"),
        (lambda folder: (folder / "pytorch_model.bin").touch(), "no safetensors weights, only pytorch_model.bin"),
        (lambda folder: shards(folder, c="three.safetensors"), "three.safetensors is missing; the checkpoint is incom"),
        (lambda folder: shards(folder, c="two.safetensors"), "two.safetensors lacks tensor 'c' that model.safetensors"),
        (lambda folder: (folder / INDEX).write_text('{"weight_map": {"a"'), r"is not valid JSON \(Expecting ':' deli"),
        (lambda folder: (folder / INDEX).write_text("{}"), BROKEN),
        (lambda folder: (folder / INDEX).write_text('{"weight_map": 3}'), BROKEN),
        (lambda folder: (folder / INDEX).write_text('{"weight_map": {"a": []}}'), BROKEN),
        (lambda folder: many(folder, 80_001), "model.safetensors lists 80,001 tensors; allowed: at most 80,000"),
        (lambda folder: shards(folder, **dict.fromkeys(map(str, range(80_000)), "x")), "lists 80,00. tensors; allowed"),
        (lambda folder: (folder / INDEX).write_text("[]"), "must hold a JSON object, got list"),
        *((lambda folder, end=end: cut(folder, end), r"cannot be read as safetensors \(.*\)") for end in (0, 7, -1)),
    ],
)
def test_files_that_cannot_be_loaded(tmp_path, make, sentence):
    make(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        load_weights(tmp_path, "cpu", torch.float32)


def many(folder, number: int):
    """A file whose header lists tensors without a number."""
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"t{each}": empty for each in range(number)}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def cut(folder, end: int):
    """A file that ends too early."""
    save_file(TENSORS, folder / "model.safetensors")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:end])


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8, torch.uint8])
def test_a_quantized_tensor(tmp_path, kind):
    """Its scales are in separate tensors; read without them its values would be wrong."""
    save_file({"a": torch.ones(2).to(kind)}, tmp_path / "model.safetensors")
    sentence = r"model.safetensors: tensor 'a' is stored as (F8_E4M3|I8|U8); quantized weights are not supported"
    with pytest.raises(ConfigError, match=sentence):
        load_weights(tmp_path, "cpu", torch.float32)


@pytest.mark.parametrize(
    "outside", ["../one.safetensors", "/tmp/one.safetensors", "deeper/one.safetensors", "x" * 256, "a\x1b[31m", "a\0"]
)
def test_a_shard_outside_the_folder(tmp_path, outside):
    shards(tmp_path, a=outside)
    with pytest.raises(
        ConfigError, match=f"names the shard {re.escape(repr(outside)[:200])}.*; a shard must be a file"
    ):
        load_weights(tmp_path, "cpu", torch.float32)


def test_a_tensor_comes_from_the_shard_that_the_index_names(tmp_path):
    shards(tmp_path)
    save_file({"b": TENSORS["b"], "a": TENSORS["a"] + 1, "old": TENSORS["a"]}, tmp_path / "two.safetensors")
    weights = load_weights(tmp_path, "cpu", torch.float32)
    assert set(weights) == {"a", "b"} and torch.equal(weights["a"], TENSORS["a"])


def test_names_are_read_without_the_shards(tmp_path):
    shards(tmp_path)
    (tmp_path / "one.safetensors").unlink()
    assert has_weights(tmp_path) and tensor_names(tmp_path) == {"a", "b"}
    whole = tmp_path / "whole"
    whole.mkdir()
    assert not has_weights(whole)
    save_file(TENSORS, whole / "model.safetensors")
    assert has_weights(whole) and tensor_names(whole) == set(TENSORS)


def test_take_refuses_numbers_of_the_wrong_kind():
    take = WeightReader({"a": torch.arange(3), "b": torch.zeros(2), "c": torch.ones(2, dtype=torch.bool)}, "Model")
    with pytest.raises(ConfigError, match="Model: tensor 'a' holds int64; it must hold floating-point numbers"):
        take("a", 3)
    with pytest.raises(ConfigError, match="Model: tensor 'b' holds float32; it must hold integers"):
        take.ids("b", 2)
    with pytest.raises(ConfigError, match="Model: tensor 'c' holds bool; it must hold integers"):
        take.ids("c", 2)


def test_take_releases_the_result():
    """A model keeps its own copies; the checkpoint's tensors would be a second model in memory."""
    weights = {"a": torch.zeros(2), "b": torch.zeros(2), "layers.9.c": torch.zeros(2)}
    kept = weakref.ref(weights["a"])
    take = WeightReader(weights, "Model")
    take("a", 2)
    take.leave("layers.9.")
    assert set(weights) == {"b"} and kept() is None


def test_take_refuses_missing_misshapen_and_unused_tensors():
    take = WeightReader({"a": torch.zeros(2, 3), "b": torch.zeros(1), "x.rotary_emb.inv_freq": torch.zeros(4)}, "Model")
    with pytest.raises(ConfigError, match="Model: tensor 'c' is missing from the weights"):
        take("c", 1)
    with pytest.raises(ConfigError, match=r"Model: tensor 'b' has shape \(1,\), but config.json implies \(2,\)"):
        take("b", 2)
    with pytest.raises(ConfigError, match="Model: tensor 'a' does not belong to this architecture"):
        take.done()
    assert take("a", 2, 3).shape == (2, 3)
    take.done()


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch):
    """A rank's own device, where safetensors would take the first."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    devices = ("cuda", torch.device("cuda"), "cuda:1", "cpu")
    assert [numbered(device) for device in devices] == ["cuda:3", "cuda:3", "cuda:1", "cpu"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_that_are_none_are_refused(number, dtype):
    damaged = torch.ones(3, 2, dtype=dtype)
    damaged[2, 1] = number
    take = WeightReader({"a": damaged}, "Model")
    with pytest.raises(ConfigError, match=r"^Model: tensor 'a' holds NaN or infinite numbers; the file is damaged$"):
        take("a", 3, 2)
