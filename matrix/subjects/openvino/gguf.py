"""Checkpoints as GGUF files, which OpenVINO GenAI reads and saves in its own format, kept in the user's cache. Runs in
OpenVINO's environment."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import openvino_genai

from specmatrix.matrix.subjects.checkpoint_cache import kept
from specmatrix.matrix.subjects.environment import OPENVINO

TYPES: Final = {"F16": np.float16, "F32": np.float32}
NAMES: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
ROTATED: Final = ("attn_q", "attn_k")
# The pre-tokenizer that splits digits, and then as GPT-2 does.
SPLIT: Final = "smollm"
LAYER: Final = "model.layers."
NORMAL, CONTROL = 1, 3


def converted(folder: Path) -> str:
    """The folder of a Llama checkpoint in OpenVINO's format, with its tokenizer."""
    place, version = OPENVINO.folder() / "models", f"{OPENVINO.version()}"
    return str(kept(place, version, [folder], "", lambda place: _convert(folder, place)))


def _convert(folder: Path, place: Path) -> None:
    place.mkdir()
    file = place / "model.gguf"
    _write(folder, file)
    openvino_genai.ContinuousBatchingPipeline(
        file, openvino_genai.SchedulerConfig(), "CPU", {"enable_save_ov_model": True}
    )
    openvino_genai.Tokenizer(file, enable_save_ov_model=True)
    file.unlink()


def _write(folder: Path, file: Path) -> None:
    config, words = (json.loads((folder / f"{name}.json").read_bytes()) for name in ("config", "tokenizer"))
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    special = {token["id"] for token in words["added_tokens"]}
    tokens = sorted(words["model"]["vocab"], key=words["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLIT)
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in words["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    for name, tensor in _tensors(folder / "model.safetensors"):
        writer.add_tensor(*_placed(name.removesuffix(".weight"), tensor, config["head_dim"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(file: Path) -> Iterator[tuple[str, Any]]:
    """Each tensor of a safetensors file."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            start, end = (8 + length + at for at in entry["data_offsets"])
            yield name, np.frombuffer(data[start:end], TYPES[entry["dtype"]]).reshape(entry["shape"])


def _placed(name: str, tensor: Any, head: int) -> tuple[str, Any]:
    """A tensor as GGUF has it: norms in float32, the two halves of each rotated head in turns."""
    layer = ""
    if name.startswith(LAYER):
        number, name = name.removeprefix(LAYER).split(".", 1)
        layer = f"blk.{number}."
    found = NAMES[name]
    if found in ROTATED:
        tensor = tensor.reshape(-1, 2, head // 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
    return f"{layer}{found}.weight", np.ascontiguousarray(tensor if tensor.ndim > 1 else tensor.astype(np.float32))
