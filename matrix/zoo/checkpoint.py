"""Writing and reading checkpoints in Hugging Face layout."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from matrix.zoo.eagle_net import EagleNet
from matrix.zoo.net import LlamaNet
from matrix.zoo.recipes import Recipe
from matrix.zoo.tokenizer import BOS_ID, EOS_ID
from matrix.zoo.tokenizer import save as save_tokenizer

STORED = torch.float16


def config_of(recipe: Recipe, target_hidden: int) -> dict[str, Any]:
    """config.json of a recipe; `target_hidden` is the width of the target's hidden state (EAGLE3 only)."""
    shape = recipe.shape
    eagle = recipe.kind == "eagle3"
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3" if eagle else "LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
        "torch_dtype": "float16",
    }
    if eagle:
        config["draft_vocab_size"] = recipe.draft_vocab
        config["target_hidden_size"] = target_hidden
        config["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": list(recipe.aux_layers),
            "use_aux_hidden_state": True,
        }
    return config


def write(
    folder: Path,
    recipe: Recipe,
    module: nn.Module,
    tokenizer_json: str,
    target_hidden: int = 0,
    kept: Tensor | None = None,
) -> None:
    """Config, weights and tokenizer; `kept` [Vd]: ascending target ids of the draft vocabulary (EAGLE3 only)."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to(STORED).cpu().contiguous() for name, tensor in module.state_dict().items()}
    if kept is not None:
        tensors["d2t"] = (kept - torch.arange(len(kept))).to(torch.int64)
        tensors["t2d"] = torch.zeros(recipe.shape.vocab, dtype=torch.bool).index_fill(0, kept, True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _json(folder / "config.json", config_of(recipe, target_hidden))
    if recipe.kind != "eagle3":
        _json(
            folder / "generation_config.json",
            {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": EOS_ID, "do_sample": False},
        )
    save_tokenizer(tokenizer_json, folder, recipe.shape.max_positions)


def _json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def read_llama(folder: Path, recipe: Recipe, device: torch.device) -> LlamaNet:
    """The stored weights in float32, so that what is evaluated is what is shipped."""
    net = LlamaNet(recipe.shape)
    net.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()})
    return net.to(device).eval().requires_grad_(False)


def read_eagle(folder: Path, recipe: Recipe, aux_width: int, device: torch.device) -> tuple[EagleNet, Tensor]:
    """The stored head in float32 and the target ids [Vd] of its draft vocabulary."""
    net = EagleNet(recipe.shape, aux_width, recipe.draft_vocab)
    tensors = load_file(folder / "model.safetensors")
    kept = tensors.pop("d2t") + torch.arange(recipe.draft_vocab)
    tensors.pop("t2d")
    net.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return net.to(device).eval().requires_grad_(False), kept.to(device)
