"""Writes a checkpoint in the sizes that vLLM's CPU kernels take, as the same function: latent attention (MLA), heads of
hybrids, and drafts with as many heads as vLLM takes. Runs in vLLM's environment, where this package's dependencies are
not installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isqrt, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from specmatrix.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

# What changes in a configuration, and the new tensor from a name and the tensor.
Padding: TypeAlias = tuple[dict[str, Any], Callable[[str, "Tensor"], "Tensor"]]
# `chunk_gated_delta_rule_cpu` takes heads of 64 or 128 numbers, of keys and values alike.
DIM: Final = 64


def delta_nets(config: dict[str, Any]) -> Padding:
    """Gated delta nets with heads of dk keys and dv values, padded with zeros to DIM.

    A norm over dv numbers becomes one over DIM, so its weight shrinks by sqrt(dv / DIM), and queries are divided by
    sqrt(DIM). The norm forgets both but for its epsilon, which shrinks by dk dv / DIM^2. All norms share it: inputs of
    the others are so large that log-probabilities of answers move by 3e-3 nats at most.
    """
    import torch
    from torch.nn.functional import pad

    sizes = ("key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads")
    dk, dv, groups, heads = (config[f"linear_{size}"] for size in sizes)
    # Of each tensor the heads, in order, and their sizes.
    channels, grouped = ((groups, dk), (groups, dk), (heads, dv)), (heads // groups, dv)
    blocks = {"in_proj_qkv": channels, "conv1d": channels, "in_proj_z": channels[2:], "out_proj": channels[2:]}
    blocks["in_proj_qkvz"] = ((1, dk), (1, dk), grouped, grouped) * groups

    def change(name: str, x: Tensor) -> Tensor:
        place = name.rpartition("linear_attn.")[2].removesuffix(".weight")
        if place == "norm":
            return pad(x.float() * sqrt(dv / DIM), (0, DIM - dv))
        if place not in blocks:
            return x
        rows = torch.split(x.T if place == "out_proj" else x, [count * size for count, size in blocks[place]])
        each = (part.reshape(*block, -1) for part, block in zip(rows, blocks[place], strict=True))
        wide = torch.cat([pad(part, (0, 0, 0, DIM - part.shape[1])).flatten(0, 1) for part in each])
        return (wide.T if place == "out_proj" else wide.view(-1, *x.shape[1:])).contiguous()

    epsilon = config["rms_norm_eps"] * dk * dv / DIM**2
    return {"linear_key_head_dim": DIM, "linear_value_head_dim": DIM, "rms_norm_eps": epsilon}, change


def draft_heads(config: dict[str, Any]) -> Padding:
    """A draft with query heads of zeros, so many that they divide the hidden size: transformers' configuration, which
    vLLM reads, wants this."""
    from torch.nn.functional import pad

    hidden, heads, groups = (config[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    wide = next(count for count in range(heads, hidden + 1, groups) if hidden % count == 0)
    more = (wide - heads) * config.get("head_dim", hidden // heads)
    pads = {"q_proj": (0, 0, 0, more), "o_proj": (0, more)}
    return {"num_attention_heads": wide}, lambda name, x: pad(x, pads.get(f".{name}".split(".")[-2], (0, 0)))


# The variant of a command.
WIDE: Final = "padded to the sizes of vLLM's CPU kernels"
# Numbers per token and layer in the KV cache: without and with RoPE.
LATENT, ROTARY = 512, 64
# At factor 1 YaRN equals plain RoPE, with which vLLM's CPU build rotates the first head only (docs/findings.md).
# Published DeepSeek-V3 checkpoints have YaRN too.
YARN: Final = {"type": "yarn", "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}


def widen(source: Path, place: Path) -> None:
    """Write the checkpoint of folder `source` to `place`, padded with zeros; for hybrids and drafts see `padded_heads`.

    Of latent attention a norm over r numbers becomes one over 512: its input grows by sqrt(512 / r), its weight
    shrinks by as much. RoPE of width d takes each (64 / d)th frequency of width 64. The scores' scale 1 / sqrt(n + d),
    n numbers of a head without RoPE, halves as often as queries double. All factors are powers of two, so that no
    weight is rounded.

    Raises ConfigError where a factor is not one.
    """
    from safetensors.torch import load_file, save_file

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    kinds = {"kv_lora_rank": latent, "linear_key_head_dim": delta_nets, "hidden_size": draft_heads}
    fields, change = next(kind for name, kind in kinds.items() if name in config)(config)
    tensors = {
        name: change(name, tensor)
        for path in sorted(source.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json":
            (place / path.name).symlink_to(path)
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    (place / "config.json").write_text(json.dumps(config | fields), encoding="utf-8")


def latent(config: dict[str, Any]) -> Padding:
    """Latent attention: what changes in a configuration, and tensors."""
    sizes = LatentSizes(config)
    return sizes.fields, sizes.widened


class LatentSizes:
    """Sizes of latent attention in a configuration, and the factors that make up for wider ones."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.heads: int = config["num_attention_heads"]
        self.latent: int = config["kv_lora_rank"]
        self.rotary: int = config["qk_rope_head_dim"]
        self.plain: int = config["qk_nope_head_dim"]
        head = self.plain + self.rotary
        self.growth = isqrt(LATENT // self.latent)
        self.queries = 1
        while head * self.queries**2 < self.plain + ROTARY:
            self.queries *= 2
        self.wide = head * self.queries**2 - ROTARY
        exact = self.growth & (self.growth - 1) == 0 and self.growth**2 * self.latent == LATENT
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        plain = rope.get("rope_type", rope.get("type", "default")) == "default"
        if not (exact and plain and config["q_lora_rank"]) or ROTARY % self.rotary or config.get("attention_bias"):
            raise ConfigError(
                f"latent attention of {self.latent} and {self.rotary} cannot be widened to {LATENT} and {ROTARY}; "
                f"{LATENT} divided by the first must be a power of 4, {ROTARY} a multiple of the second, RoPE plain, "
                "and queries compressed and without bias"
            )
        yarn = {**YARN, "original_max_position_embeddings": config["max_position_embeddings"]}
        self.fields = {"kv_lora_rank": LATENT, "qk_rope_head_dim": ROTARY, "rope_scaling": yarn}
        self.fields["qk_nope_head_dim"] = self.wide

    def widened(self, name: str, x: Tensor) -> Tensor:
        """The tensor of this name at the wide sizes."""
        import torch
        from torch.nn.functional import pad

        if name.endswith("q_b_proj.weight"):
            heads = self._heads(x * self.queries)
            plain, turning = heads[:, : self.plain], heads[:, self.plain :]
            return torch.cat((_rows(plain, self.wide), self._spread(turning)), 1).flatten(0, 1)
        if name.endswith("kv_a_proj_with_mqa.weight"):
            latent, turning = x[: self.latent], x[self.latent :]
            return torch.cat((_rows(latent * self.growth, LATENT), self._spread(turning)))
        if name.endswith("kv_a_layernorm.weight"):
            return pad(x / self.growth, (0, LATENT - self.latent))
        if name.endswith("kv_b_proj.weight"):
            heads = self._heads(pad(x, (0, LATENT - self.latent)))
            return torch.cat((_rows(heads[:, : self.plain], self.wide), heads[:, self.plain :]), 1).flatten(0, 1)
        return x

    def _spread(self, x: Tensor) -> Tensor:
        """Rows of interleaved pairs [..., rotary, K] at the places [..., 64, K] of their frequencies."""
        step = ROTARY // self.rotary
        out = x.new_zeros(*x.shape[:-2], ROTARY // 2, 2, x.shape[-1])
        out[..., ::step, :, :] = x.reshape(*x.shape[:-2], -1, 2, x.shape[-1])
        return out.flatten(-3, -2)

    def _heads(self, x: Tensor) -> Tensor:
        """Rows [heads * n, K] as [heads, n, K]."""
        return x.view(self.heads, -1, x.shape[-1])


def _rows(x: Tensor, count: int) -> Tensor:
    """Rows [..., n, K] followed by zeros up to `count`."""
    from torch.nn.functional import pad

    return pad(x, (0, 0, 0, count - x.shape[-2]))
