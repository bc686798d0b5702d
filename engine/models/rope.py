"""Rotary positions (RoFormer, arXiv 2104.09864) with the scalings that Llama checkpoints use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from engine.core.errors import ConfigError

KINDS: Final = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """theta: base of the frequencies. The other fields are read by the kinds that name them in `frequencies`."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    @classmethod
    def read(cls, raw: Mapping[str, Any], where: str) -> RopeConfig:
        """From config.json, in transformers' new spelling (rope_parameters) or the old (rope_theta, rope_scaling)."""
        row = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
        kind = row.get("rope_type", row.get("type", "default"))
        if kind not in KINDS:
            raise ConfigError(f"{where}: rope_type {kind!r} is not supported; allowed: {', '.join(KINDS)}")
        theta = row.get("rope_theta", raw.get("rope_theta", 10000.0))
        values = {"rope_theta": theta}
        for name in {"default": (), "linear": ("factor",)}.get(kind, LLAMA3_FIELDS):
            values[name] = row.get(name)
        for name, value in values.items():
            if type(value) not in (int, float) or not value > 0:
                raise ConfigError(f"{where}: {name} must be a positive number for rope_type {kind!r}, got {value!r}")
        return cls(
            theta=float(theta),
            kind=kind,
            factor=float(values.get("factor", 1.0)),
            low_freq_factor=float(values.get("low_freq_factor", 1.0)),
            high_freq_factor=float(values.get("high_freq_factor", 4.0)),
            original_context=int(values.get("original_max_position_embeddings", 8192)),
        )


LLAMA3_FIELDS: Final = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each pair, float32 [head_dim / 2]."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequency = 1.0 / (rope.theta**exponent)
    if rope.kind == "linear":
        return frequency / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, frequency)
    return frequency


def _llama3(rope: RopeConfig, frequency: Tensor) -> Tensor:
    """Long waves slowed by `factor`, short ones kept, a linear blend between (Llama 3.1's published rule)."""
    wavelength = 2 * math.pi / frequency
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = ((rope.original_context / wavelength - rope.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - keep) * frequency / rope.factor + keep * frequency


def rotations(rope: RopeConfig, head_dim: int, length: int, device: torch.device) -> Tensor:
    """Unit complex numbers of positions 0..length-1: complex64 [length, head_dim / 2]."""
    angle = torch.arange(length, dtype=torch.float32)[:, None] * frequencies(rope, head_dim)
    return torch.complex(angle.cos(), angle.sin()).to(device)


def pair_up(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of a q or k projection, from halves (x_0.., y_0..) to pairs (x_0, y_0, x_1, ..).

    Then a rotation is one complex product in place. Queries and keys are permuted alike, so their products stay.
    weight [heads * head_dim, in].
    """
    heads = weight.shape[0] // head_dim
    return weight.view(heads, 2, head_dim // 2, -1).transpose(1, 2).reshape(weight.shape)


def rotate(rows: Tensor, heads: int, head_dim: int, turn: Tensor) -> None:
    """Turn the first `heads` heads of each row in place. rows [M, >= heads * head_dim] contiguous, heads paired up.

    turn: complex64 [M or 1, 1, head_dim / 2].
    """
    part = rows[:, : heads * head_dim]
    pairs = torch.view_as_complex(part.float().view(-1, heads, head_dim // 2, 2)).mul_(turn)
    part.copy_(torch.view_as_real(pairs).flatten(1))
