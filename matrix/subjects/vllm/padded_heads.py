"""Hybrids with heads of the size that vLLM's CPU kernel takes, and drafts with as many heads as vLLM takes. Runs in
vLLM's environment, where this package's dependencies are not installed."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Any, Final, TypeAlias

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
