"""Checkpoints as GGUF files, which OpenVINO GenAI reads and saves in its own format, kept in the user's cache. Runs in
OpenVINO's environment."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import openvino
import openvino_genai

from specmatrix.matrix.subjects.environment import OPENVINO, kept
from specmatrix.matrix.subjects.openvino.eagle3 import FUSED, as_draft, as_llama, name_layers

TYPES: Final = {"F16": np.float16, "F32": np.float32, "I64": np.int64, "BOOL": np.bool_}
MODEL: Final = "openvino_model.xml"
# GGUF's names: of a checkpoint's tensors, and of the fields of its configuration.
NAMES: Final = {
    **{"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"},
    **{"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output"},
    **{f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}
FIELDS: Final = {
    **{"block_count": "num_hidden_layers", "context_length": "max_position_embeddings"},
    **{"embedding_length": "hidden_size", "feed_forward_length": "intermediate_size"},
    **{"head_count": "num_attention_heads", "head_count_kv": "num_key_value_heads"},
    **{"key_length": "head_dim", "value_length": "head_dim", "rope_freq_base": "rope_theta"},
    **{"layer_norm_rms_eps": "rms_norm_eps", "bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id"},
    **{"pad_token_id": "pad_token_id"},
}
ROTATED: Final = ("attn_q", "attn_k")
# The pre-tokenizer that splits digits, and then as GPT-2 does.
SPLIT: Final = "smollm"
LAYER: Final = "model.layers."
NORMAL, CONTROL = 1, 3


def converted(folder: Path) -> str:
    """The folder of a Llama checkpoint, or an EAGLE3 draft of one, in OpenVINO's format, with its tokenizer."""
    place, version = OPENVINO.folder() / "models", f"{OPENVINO.version()}"
    return str(kept(place, version, [folder], "", lambda place: _convert(folder, place)))


def _convert(folder: Path, place: Path) -> None:
    place.mkdir()
    file, model = place / "model.gguf", place / MODEL
    config = json.loads((folder / "config.json").read_bytes())
    tensors = dict(read_tensors(folder / "model.safetensors"))
    drafts = FUSED in tensors
    _write(folder, config, as_llama(config, tensors) if drafts else tensors, file)
    saved = {"enable_save_ov_model": True}
    openvino_genai.ContinuousBatchingPipeline(file, openvino_genai.SchedulerConfig(), "CPU", saved)
    openvino_genai.Tokenizer(file, **saved)
    changed = openvino.Core().read_model(model)
    name_layers(changed)
    if drafts:
        as_draft(changed, config, tensors)
    openvino.save_model(changed, place / f"changed-{MODEL}", compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        (place / f"changed-{MODEL}").with_suffix(suffix).replace(model.with_suffix(suffix))
    file.unlink()


def _write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any], file: Path) -> None:
    words = json.loads((folder / "tokenizer.json").read_bytes())
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for name, field in FIELDS.items():
        getattr(writer, f"add_{name}")(config[field])
    special = {token["id"] for token in words["added_tokens"]}
    tokens = sorted(words["model"]["vocab"], key=words["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLIT)
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in words["model"]["merges"]])
    for name, tensor in tensors.items():
        writer.add_tensor(*placed(name.removesuffix(".weight"), tensor, config["head_dim"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_tensors(file: Path) -> Iterator[tuple[str, Any]]:
    """Each tensor of a safetensors file."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            start, end = (8 + length + at for at in entry["data_offsets"])
            yield name, np.frombuffer(data[start:end], TYPES[entry["dtype"]]).reshape(entry["shape"])


def placed(name: str, tensor: Any, head: int) -> tuple[str, Any]:
    """A tensor as GGUF has it: norms in float32, the two halves of each rotated head in turns."""
    layer = ""
    if name.startswith(LAYER):
        number, name = name.removeprefix(LAYER).split(".", 1)
        layer = f"blk.{number}."
    found = NAMES[name]
    if found in ROTATED:
        tensor = tensor.reshape(-1, 2, head // 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
    return f"{layer}{found}.weight", np.ascontiguousarray(tensor if tensor.ndim > 1 else tensor.astype(np.float32))
