"""The converters of checkpoints: what they write, what they say of a refusal, and that each content is converted once.
Stubs stand for the engines' packages, and scripts for their own converters."""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from specmatrix.errors import ConfigError
from specmatrix.matrix.subjects.environment import GENAI, LLAMACPP
from specmatrix.matrix.subjects.llamacpp import gguf as llamacpp
from specmatrix.matrix.subjects.onnxruntime_genai import engine as genai


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """OpenVINO's two converters, imported without its packages."""
    for name in ("gguf", "openvino", "openvino_genai"):
        stub = ModuleType(name)
        vars(stub)["opset13"] = ModuleType("opset13")
        monkeypatch.setitem(sys.modules, name, stub)
    names = [f"specmatrix.matrix.subjects.openvino.{name}" for name in ("eagle3", "gguf")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = [import_module(name) for name in names]
    for name in names:  # so that others import it with its packages
        del sys.modules[name]
    return found[0], found[1]


def test_openvinos_tensors_have_ggufs_names_types_and_order(openvino, tmp_path: Path):
    _, gguf = openvino
    rows = np.arange(16, dtype=np.float16).reshape(8, 2)  # two heads of four rows
    place, tensor = gguf.placed("model.layers.3.self_attn.q_proj", rows, 4)
    assert place == "blk.3.attn_q.weight" and tensor[:, 0].tolist() == [0, 4, 2, 6, 8, 12, 10, 14]
    for name, place in (("layers.0.self_attn.v_proj", "blk.0.attn_v"), ("embed_tokens", "token_embd")):
        assert gguf.placed(f"model.{name}", rows, 4)[0] == f"{place}.weight"
        assert gguf.placed(f"model.{name}", rows, 4)[1].tolist() == rows.tolist()
    place, norm = gguf.placed("model.norm", rows[0], 4)
    assert (place, norm.dtype, norm.tolist()) == ("output_norm.weight", np.float32, [0, 1])
    written = {"a": rows, "b": np.array([[1.5]], np.float32), "c": np.array([7, -2]), "d": np.array([True, False])}
    save_file(written, tmp_path / "model.safetensors", {"format": "pt"})
    read = dict(gguf.read_tensors(tmp_path / "model.safetensors"))
    assert {name: (one.dtype, one.tolist()) for name, one in read.items()} == {
        name: (one.dtype, one.tolist()) for name, one in written.items()
    }


def test_an_eagle3_draft_is_a_llama_whose_attention_reads_the_embedding(openvino):
    eagle3, _ = openvino
    wide = np.arange(8).reshape(1, 8)  # the embedding's columns before those of the hidden state
    names = ("fc", "midlayer.hidden_norm", "midlayer.self_attn.k_proj", "midlayer.mlp.up_proj", "norm", "lm_head")
    tensors = {**{f"{name}.weight": wide for name in names}, "d2t": wide, "t2d": wide}
    found = eagle3.as_llama({"hidden_size": 4}, tensors)
    assert {name: one.shape[1] for name, one in found.items()} == {
        **{"model.layers.0.self_attn.k_proj.weight": 4, "model.layers.0.mlp.up_proj.weight": 8},
        **{"model.norm.weight": 8, "lm_head.weight": 8},
    }
    assert found["model.layers.0.self_attn.k_proj.weight"].tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("variable", "convert", "refusal"),
    [
        (LLAMACPP.variable, llamacpp.converted, "llama.cpp's converter refuses {}: noise no such layer"),
        (GENAI.variable, genai.converted, "the builder of ONNX Runtime GenAI refuses {}: no such layer"),
    ],
)
def test_a_checkpoint_is_converted_once_and_a_refusal_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, convert: Callable[[Path], Path], refusal: str
):
    folder, calls = tmp_path / "checkpoint", list[list[str]]()
    folder.mkdir()
    (tmp_path / "environment").mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.setenv(variable, str(tmp_path / "environment"))
    fails = True

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(words)
        if fails:
            return subprocess.CompletedProcess(words, 1, "", "noise\nno such layer\n")
        place = Path(words[words.index("--outfile" if "--outfile" in words else "-o") + 1])
        if "--outfile" not in words:
            place.mkdir()
            place /= genai.CONFIG
        place.write_text("made", encoding="utf-8")
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ConfigError) as said:
        convert(folder)
    assert refusal.format(folder) in str(said.value)
    fails = False
    found = convert(folder)
    assert found == convert(folder) and found.exists() and len(calls) == 2
    (folder / "config.json").write_text('{"other": 1}', encoding="utf-8")
    assert convert(folder) != found and len(calls) == 3
