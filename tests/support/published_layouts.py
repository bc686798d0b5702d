"""Checkpoints laid out file by file, field by field and name by name as the published ones, with small random weights.

What is small: sizes. What is not: which fields config.json has and how it spells them, the names of tensors, their
precision, and shards with an index.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from specmatrix.matrix.zoo.published.pairs import MODELS
from specmatrix.matrix.zoo.registry import resolve_path
from tests.support.block_drafts import block_net, shapes_of
from tests.support.random_drafts import eagle3_shapes

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": 768,
    "draft_vocab_size": 96,
    "max_position_embeddings": 4096,
    "sliding_window": 12,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_group": 4,
    "topk_group": 2,
}
# Where one size for all would not do.
OWN: dict[str, dict[str, Any]] = {
    "llama-3.1-8b-eagle3": {"num_hidden_layers": 1},
    "llama-3.2-1b-instruct": {"hidden_size": 40, "num_hidden_layers": 3},
    "qwen3-8b-eagle3": {"num_hidden_layers": 1},
    "qwen3-8b-dflash": {
        "num_hidden_layers": 2,
        "layer_types": ["full_attention"] * 2,
        "dflash_config": {"mask_token_id": 767, "target_layer_ids": [1, 4, 6]},
    },
    "gigachat3-10b": {"num_hidden_layers": 4, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4},
    "deepseek-v3": {"num_hidden_layers": 4, "first_k_dense_replace": 2, "num_key_value_heads": 4},
}
# DeepSeek-V3's own config.json but for quantization_config, as its exports to bf16 have it.
DEEPSEEK_V3: dict[str, Any] = json.loads(Path(__file__).with_name("deepseek_v3.json").read_text(encoding="utf-8"))
TARGETS = [name for name, model in MODELS.items() if model.config["architectures"][0].endswith("ForCausalLM")]


def small_config(name: str) -> dict[str, Any]:
    """The config.json of a published checkpoint with small numbers: a field more or less would be another layout."""
    published: Mapping[str, Any] = DEEPSEEK_V3 if name == "deepseek-v3" else MODELS[name].config
    small = SMALL | OWN.get(name, {})
    found = {field: small.get(field, value) if value is not None else None for field, value in published.items()}
    if found.get("rope_scaling"):
        # Short waves, so that 40 positions show what is scaled.
        found["rope_scaling"] = found["rope_scaling"] | {"original_max_position_embeddings": 16}
    return found


def writer(root: Path) -> Callable[[str], Path]:
    """From a published checkpoint's name to the folder of one like it under `root`; each is written once."""

    @cache
    def folder(name: str) -> Path:
        return write(root / name, name)

    return folder


def write(folder: Path, name: str, seed: int = 7, **changes: object) -> Path:
    """A checkpoint like the published one of that name."""
    config = small_config(name) | changes
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if config["architectures"] == ["LlamaForCausalLMEagle3"]:
        save_file(_eagle3(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    elif config["architectures"] == ["DFlashDraftModel"]:
        save_file(_dflash(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    else:
        shard(folder, _target(folder, config, seed))
        for file in TOKENIZER:
            shutil.copy(resolve_path("llama-mini") / file, folder)
    return folder


def shard(folder: Path, tensors: Mapping[str, Tensor], count: int = 3) -> None:
    """The tensors in `count` files, and the index that says which is where."""
    names = sorted(tensors)
    parts = [names[i::count] for i in range(count)]
    where = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-{count:05d}.safetensors"
        save_file({name: tensors[name].contiguous() for name in part}, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _target(folder: Path, config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """transformers' own names; prediction layers are layers behind the last, with what joins and ends them."""
    depth, bundled = config["num_hidden_layers"], config.get("num_nextn_predict_layers", 0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder, num_hidden_layers=depth + bundled), dtype=torch.float32
    )
    scratch = folder / "scratch"
    model.save_pretrained(scratch)
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(scratch / "model.safetensors").items()}
    shutil.rmtree(scratch)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    for i in range(depth, depth + bundled):
        at = f"model.layers.{i}."
        shapes |= {f"{at}{norm}.weight": (hidden,) for norm in ("enorm", "hnorm", "shared_head.norm")}
        shapes[f"{at}eh_proj.weight"] = (hidden, 2 * hidden)
        shapes |= dict.fromkeys((f"{at}embed_tokens.weight", f"{at}shared_head.head.weight"), (vocab, hidden))
    tensors = _random(shapes, seed, torch.bfloat16)
    for i in range(depth, depth + bundled):
        tensors[f"model.layers.{i}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"model.layers.{i}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    return tensors


def _random(shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Norm weights away from 1 and logits away from 0, so that a forgotten factor shows."""
    g = torch.Generator().manual_seed(seed)
    made = {}
    for name in sorted(shapes):
        norm = "norm" in name
        tensor = torch.rand(shapes[name], generator=g) + 0.5 if norm else torch.randn(shapes[name], generator=g) * 0.2
        made[name] = tensor if name.endswith("e_score_correction_bias") else tensor.to(dtype)
    return made


def _eagle3(c: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """The 15 tensors of a head for SGLang: no embedding, ids as differences, a mask of the target's ids."""
    hidden, own, vocab = c["hidden_size"], c["draft_vocab_size"], c["vocab_size"]
    d = c.get("head_dim") or hidden // c["num_attention_heads"]
    shapes = eagle3_shapes(c | {"head_dim": d, "target_hidden_size": hidden}, states=3)
    del shapes["embed_tokens.weight"]
    kept = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))[:own].sort().values
    more = {"d2t": kept - torch.arange(own), "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill_(0, kept, True)}
    return _random(shapes, seed, torch.float16) | more


def _dflash(c: dict[str, Any], seed: int) -> dict[str, Tensor]:
    return _random(shapes_of(block_net(c, target_hidden=c["hidden_size"])), seed, torch.bfloat16)
