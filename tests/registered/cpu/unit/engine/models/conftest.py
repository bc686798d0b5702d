"""Checkpoints with random weights, and a paged driver for a model without the rest of the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, Qwen3NextConfig
from transformers.utils import logging

from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.kv_groups import SplitAttention, StepStates, routes_of, windowed_bias
from specmatrix.engine.device.pool import KVPool, StatePool
from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.models.eagle.model import Eagle3
from specmatrix.engine.models.standalone.model import Standalone
from tests.support.random_drafts import eagle3_shapes

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
QWEN3: dict[str, Any] = SHAPE | {
    "num_hidden_layers": 4,
    "use_sliding_window": True,
    "sliding_window": 11,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
}
DEEPSEEK: dict[str, Any] = {
    name: size for name, size in SHAPE.items() if name not in ("head_dim", "tie_word_embeddings")
}
DEEPSEEK |= {
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 28,
    "kv_lora_rank": 21,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 10,
    "v_head_dim": 18,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 28,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "num_nextn_predict_layers": 0,
}
HYBRID: dict[str, Any] = SHAPE | {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.25,
}
SPARSE: dict[str, Any] = HYBRID | {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 36,
    "experts_implementation": "eager",
}
# What each architecture is built from: the configuration's class, the model's, and a small shape.
ARCHITECTURES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaConfig, transformers.LlamaForCausalLM, SHAPE),
    "mistral": (MistralConfig, transformers.MistralForCausalLM, SHAPE | {"sliding_window": 11}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, QWEN3),
    "deepseek": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM, DEEPSEEK),
    "qwen3_next": (Qwen3NextConfig, transformers.Qwen3NextForCausalLM, SPARSE),
    "qwen3_5": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM, HYBRID),
    "qwen3_5_moe": (transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM, SPARSE),
}
EAGLE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "vocab_size": 97,
    "draft_vocab_size": 41,
    "hidden_size": 36,
    "target_hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
}


@pytest.fixture(scope="session", autouse=True)
def silent():
    logging.disable_progress_bar()


@pytest.fixture
def target_folder(tmp_path) -> Callable[..., Path]:
    """A factory: a model with random weights of visible size, saved by transformers; returns its folder."""

    def build(
        architecture: str,
        name: str | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        shard: str = "5GB",
        **changes: object,
    ) -> Path:
        config, model, shape = ARCHITECTURES[architecture]
        folder: Path = tmp_path / (name or architecture)
        published = changes.pop("published", False)
        visible(model(config(**shape | changes))).to(dtype).save_pretrained(folder, max_shard_size=shard)
        return as_published(folder) if published else folder

    return build


def as_published(folder: Path) -> Path:
    """A text model as Qwen3.5 is published: beside a vision tower, with all experts of a layer in a tensor."""
    raw, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    whole = {"architectures": [raw["architectures"][0].replace("ForCausalLM", "ForConditionalGeneration")]}
    whole |= {"model_type": raw["model_type"].removesuffix("_text"), "text_config": raw, "vision_config": {"depth": 1}}
    (folder / "config.json").write_text(json.dumps(whole))
    found = {"model.visual.pos_embed.weight": torch.ones(2, 3), "lm_head.weight": weights.pop("lm_head.weight")}
    for at in {name.partition("experts.")[0] for name in weights if "experts." in name}:
        gates, ups, downs = (
            torch.stack([weights.pop(f"{at}experts.{i}.{kind}_proj.weight") for i in range(raw["num_experts"])])
            for kind in ("gate", "up", "down")
        )
        weights |= {f"{at}experts.gate_up_proj": torch.cat((gates, ups), 1), f"{at}experts.down_proj": downs}
    found |= {name.replace("model.", "model.language_model.", 1): weight for name, weight in weights.items()}
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def visible(model: PreTrainedModel) -> PreTrainedModel:
    """Norm weights away from 1 and logits away from 0, so that a forgotten factor shows."""
    torch.manual_seed(7)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(torch.rand_like(parameter) + 0.5 if "norm" in key else torch.randn_like(parameter) * 0.2)
            if "A_log" in key:  # decays from 0.1 to 0.99
                parameter.copy_(torch.rand_like(parameter).mul_(4).sub_(4))
        for key, buffer in model.named_buffers():
            if "correction" in key:
                buffer.copy_(torch.randn_like(buffer) * 0.3)
    return model


@pytest.fixture
def llama_folder(target_folder) -> Callable[..., Path]:
    """A factory of Llama's folders."""
    return partial(target_folder, "llama")


@pytest.fixture
def eagle_folder(tmp_path) -> Callable[..., Path]:
    """A factory: an EAGLE-3 draft with random weights for SHAPE. `drop` removes tensors, `put` replaces them."""

    def build(
        name: str = "eagle", *, drop: tuple[str, ...] = (), put: dict[str, Tensor] | None = None, **changes: object
    ) -> Path:
        config = EAGLE | changes
        torch.manual_seed(11)
        weights = {key: torch.randn(shape) * 0.3 for key, shape in eagle3_shapes(config, 3).items()}
        weights |= {key: torch.rand_like(w) + 0.5 for key, w in weights.items() if "norm" in key}
        ids = torch.randperm(config["vocab_size"])[: config["draft_vocab_size"]].sort().values
        weights["d2t"] = ids - torch.arange(len(ids))
        weights["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill_(0, ids, True)
        weights = {key: w for key, w in (weights | (put or {})).items() if key not in drop}
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        save_file(weights, folder / "model.safetensors")
        return folder

    return build


class Paged:
    """Requests of one model over a pool with shuffled pages; every call reads `reach` slots per request."""

    def __init__(self, model: CausalLM | Standalone | Eagle3, requests: int, reach: int, page_size: int = 4) -> None:
        self.model, self.reach = model, reach
        pages = -(-reach // page_size)
        self.pool = KVPool(model.kv, 1 + requests * pages, page_size, model.dtype, "cpu", spare=requests * 16)
        order = torch.randperm(requests * pages, generator=torch.Generator().manual_seed(3)).view(requests, pages) + 1
        self.slots = (order[:, :, None] * page_size + torch.arange(page_size)).view(requests, -1)[:, :reach]
        state = getattr(model, "state", None)
        # A slot for the state after each number of tokens, then 16 node slots for each request.
        self.first = 1 + requests * reach
        slots = self.first + requests * 16
        self.states = None if state is None else StatePool(state, slots, model.dtype, "cpu")

    def attend(
        self,
        requests: list[int],
        start: list[int],
        seen: Tensor,
        reach: int | None = None,
        depths: list[int] | None = None,
        parents: list[int] | None = None,
    ) -> StepAttention | SplitAttention:
        """seen bool [W, W]: which of the new tokens each new token may see. depths and parents: of a tree's nodes."""
        width, reach = seen.shape[0], reach or self.reach
        slots = self.slots[requests]
        hidden = torch.ones(len(requests), 1, width, reach, dtype=torch.bool)
        for row, at in enumerate(start):
            hidden[row, 0, :, :at] = False
            hidden[row, 0, :, at : at + width] = ~seen
        bias = torch.zeros(hidden.shape, dtype=self.model.dtype).masked_fill_(hidden, float("-inf"))
        write = torch.stack([slots[row, at : at + width] for row, at in enumerate(start)])
        full = StepAttention(self.pool, write, slots[:, :reach], bias)
        if self.states is not None:
            kinds = [self.model.window_of(layer) for layer in range(self.model.num_layers)]
            return SplitAttention((full,), routes_of(kinds), self._states(requests, start, width, parents))
        config = getattr(self.model, "config", None)
        windows = () if config is None else config.windows
        if not windows:
            return full
        at = torch.tensor(start)[:, None] + torch.tensor(depths or list(range(width)))
        keys = torch.arange(reach).repeat(len(start), 1)
        for row, first in enumerate(start):
            keys[row, first : first + width] = at[row]
        size = next(w for w in windows if w is not None)
        near = StepAttention(self.pool, write, slots[:, :reach], windowed_bias(bias, at, keys, size))
        return SplitAttention((full, near), tuple((int(w is not None), i) for i, w in enumerate(windows)))

    def _states(self, requests: list[int], start: list[int], width: int, parents: list[int] | None) -> StepStates:
        """A chunk keeps the state after its last token; a tree's states are in node slots."""
        row, at = torch.tensor(requests), torch.tensor(start)
        begin = torch.where(at > 0, row * self.reach + at, 0)
        if parents is None:
            write = torch.zeros(len(row), width, dtype=torch.int64)
            write[:, -1] = row * self.reach + at + width
            return StepStates(self.states, begin, write, None, False)
        nodes = self.first + row[:, None] * 16 + torch.arange(width)
        return StepStates(self.states, begin, nodes, torch.tensor([parents] * len(row)), False)

    def tree(self, nodes: Tensor, parents: list[int], request: int, start: int) -> Tensor:
        """Logits [1, N, V] of a tree of nodes [N], root first, behind `start` tokens of one request."""
        paths: list[list[int]] = []
        for node, parent in enumerate(parents):
            paths.append([*(paths[parent] if parent >= 0 else []), node])
        seen = torch.zeros(len(nodes), len(nodes), dtype=torch.bool)
        for node, path in enumerate(paths):
            seen[node, path] = True
        depths = [len(path) - 1 for path in paths]
        attend = self.attend([request], [start], seen, depths=depths, parents=parents)
        hidden, _ = self.model.forward(nodes[None], start + torch.tensor([depths]), attend)
        return self.model.logits(hidden)

    def run(
        self, tokens: Tensor, start: list[int], requests: list[int] | None = None, reach: int | None = None
    ) -> Tensor:
        """Logits of a causal chunk tokens [B, W] of the given requests at the given lengths."""
        requests = list(range(len(tokens))) if requests is None else requests
        width = tokens.shape[1]
        positions = torch.tensor(start)[:, None] + torch.arange(width)
        attend = self.attend(requests, start, torch.ones(width, width).tril().bool(), reach)
        hidden, _ = self.model.forward(tokens, positions, attend)
        return self.model.logits(hidden)


@pytest.fixture
def paged() -> type[Paged]:
    return Paged


@pytest.fixture
def architectures() -> dict[str, tuple[type, type, dict[str, Any]]]:
    return ARCHITECTURES
