"""Rotary position embeddings (RoFormer, arXiv 2104.09864) with the scalings that checkpoints use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from specmatrix.engine.models.config_reader import ConfigReader, is_number
from specmatrix.errors import ConfigError, shown
from specmatrix.kernels.backend import on_triton
from specmatrix.kernels.rotary import rotary

KINDS: Final = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """theta: base of the frequencies. The other fields are used by the rope types that name them in `frequencies`.

    attention_factor: length of a rotated pair relative to the unrotated one (YaRN, arXiv 2309.00071, section 3.4).
    score_factor: additional factor of latent attention's scores (DeepSeek-V2, arXiv 2405.04434).
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    score_factor: float = 1.0

    @classmethod
    def read(cls, fields: ConfigReader, partial: bool = False) -> RopeConfig:
        """From config.json, in transformers' new format (rope_parameters) or the old (rope_theta, rope_scaling).
        partial: the model may rotate a part of each head.

        Raises ConfigError on an unknown type or a number that is not positive.
        """
        where = str(fields.file)
        row = fields.group("rope_parameters").raw or fields.group("rope_scaling").raw
        kind = row.get("rope_type", row.get("type", "default"))
        if kind not in KINDS:
            raise ConfigError(f"{where}: rope_type {shown(kind)} is not supported; allowed: {', '.join(KINDS)}")
        theta = row.get("rope_theta", fields.raw.get("rope_theta", 10000.0))
        part = row.get("partial_rotary_factor", fields.raw.get("partial_rotary_factor"))
        if part not in (None, 1) and not partial:
            raise ConfigError(f"{where}: partial_rotary_factor {shown(part)} is not supported; allowed: 1")
        values = {"rope_theta": theta, **{name: row.get(name, OPTIONAL.get(name)) for name in FIELDS[kind]}}
        for name, value in values.items():
            if not is_number(value):
                raise ConfigError(
                    f"{where}: {name} must be a positive number for rope_type {kind!r}, got {shown(value)}"
                )
        known: dict[str, Any] = {RENAMED[name]: float(value) for name, value in values.items()}
        if "original_context" in known:
            known["original_context"] = int(known["original_context"])
        return cls(kind=kind, **known, **(_yarn_factors(row, values["factor"], where) if kind == "yarn" else {}))


FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
}
OPTIONAL: Final = {"beta_fast": 32, "beta_slow": 1}
# The field of a RopeConfig for each number in config.json.
RENAMED: Final = {
    "rope_theta": "theta",
    "original_max_position_embeddings": "original_context",
    **{name: name for name in ("factor", "low_freq_factor", "high_freq_factor", *OPTIONAL)},
}


def _yarn_factors(row: Mapping[str, Any], factor: float, where: str) -> dict[str, Any]:
    """YaRN's own fields of a RopeConfig; mscale and mscale_all_dim are DeepSeek's, and may be absent or 0."""
    given = {name: row.get(name) or 0 for name in ("mscale", "mscale_all_dim", "attention_factor")}
    for name, value in given.items():
        if value != 0 and not is_number(value):
            raise ConfigError(
                f"{where}: {name} must be a number of at least 0 for rope_type 'yarn', got {shown(value)}"
            )
    truncate = row.get("truncate", True)
    if type(truncate) is not bool:
        raise ConfigError(f"{where}: truncate must be true or false for rope_type 'yarn', got {shown(truncate)}")

    def length(size: float) -> float:
        return 0.1 * size * math.log(factor) + 1.0 if factor > 1 else 1.0

    both = given["mscale"] and given["mscale_all_dim"]
    own = length(given["mscale"]) / length(given["mscale_all_dim"]) if both else length(1.0)
    return {
        "truncate": truncate,
        "attention_factor": float(given["attention_factor"] or own),
        "score_factor": length(given["mscale_all_dim"]) ** 2,
    }


def check_frequencies(rope: RopeConfig, head_dim: int, where: str) -> None:
    """ConfigError, beginning with `where`, if a frequency is not a number that float32 holds."""
    try:
        found = frequencies(rope, head_dim)
        good = bool(found.isfinite().all() and (found >= 0).all())
    except (ArithmeticError, ValueError):
        good = False
    if not good:
        raise ConfigError(
            f"{where}: rope_theta {rope.theta:g} and the numbers of rope_type {rope.kind!r} give frequencies that are "
            "not finite; the file is damaged"
        )


def frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each pair, float32 [head_dim / 2]."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequency = 1.0 / (rope.theta**exponent)
    if rope.kind == "linear":
        return frequency / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, frequency)
    if rope.kind == "yarn":
        return _yarn(rope, frequency)
    return frequency


def _llama3(rope: RopeConfig, frequency: Tensor) -> Tensor:
    """Low frequencies divided by `factor`, high ones kept, with linear interpolation between (Llama 3.1's rule)."""
    wavelength = 2 * math.pi / frequency
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = ((rope.original_context / wavelength - rope.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - keep) * frequency / rope.factor + keep * frequency


def _yarn(rope: RopeConfig, frequency: Tensor) -> Tensor:
    """Pairs that rotate often within the original context are kept, others are slowed by `factor`, with a linear ramp
    between them (arXiv 2309.00071, section 3.2). The ramp's ends are pair numbers, integers with `truncate`."""
    pairs = len(frequency)

    def pair_of(turns: float) -> float:
        return pairs * math.log(rope.original_context / (turns * 2 * math.pi)) / math.log(rope.theta)

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    slowed = ((torch.arange(pairs) - low) / (high - low if high > low else 0.001)).clamp(0, 1)
    return frequency / rope.factor * slowed + frequency * (1 - slowed)


def rotations(rope: RopeConfig, head_dim: int, length: int, device: torch.device) -> Tensor:
    """Rotations of positions 0..length-1: complex64 [length, head_dim / 2], of unit length except with YaRN."""
    angle = torch.arange(length, dtype=torch.float32)[:, None] * frequencies(rope, head_dim)
    return (torch.complex(angle.cos(), angle.sin()) * rope.attention_factor).to(device)


def pair_up(weight: Tensor, head_dim: int, turning: int | None = None) -> Tensor:
    """Reorder the rows of a q or k projection from halves (x_0.., y_0..) to pairs (x_0, y_0, x_1, ..).

    A rotation is then one in-place complex product. Queries and keys are permuted alike, so their products are
    unchanged. weight [heads * head_dim, in]. turning: how many of a head's dimensions, the first, are rotated.
    """
    heads = weight.shape[0] // head_dim
    if turning not in (None, head_dim):
        first, rest = weight.view(heads, head_dim, -1).split((turning, head_dim - turning), 1)
        return torch.cat((pair_up(first.flatten(0, 1), turning).view(first.shape), rest), 1).view(weight.shape)
    return weight.view(heads, 2, head_dim // 2, -1).transpose(1, 2).reshape(weight.shape)


def rotate(rows: Tensor, heads: int, head_dim: int, rotation: Tensor) -> None:
    """Rotate the first `heads` heads of each row in place. rows [M, >= heads * head_dim] contiguous, heads as pairs.

    rotation: complex64 [M or 1, 1, head_dim / 2].
    """
    if on_triton(rows):
        rotary(rows, rotation[:, 0].expand(len(rows), -1).contiguous(), heads)
        return
    part = rows[:, : heads * head_dim]
    pairs = torch.view_as_complex(part.float().view(-1, heads, head_dim // 2, 2)).mul_(rotation)
    part.copy_(torch.view_as_real(pairs).flatten(1))


def rotated(part: Tensor, head_dim: int, rotation: Tensor) -> Tensor:
    """A rotated copy [R, heads, head_dim] of part [R, heads * head_dim], which holds pairs and may be a view.

    rotation: as for `rotate`.
    """
    pairs = torch.view_as_complex(part.float().contiguous().view(-1).view(len(part), -1, head_dim // 2, 2)) * rotation
    return torch.view_as_real(pairs).flatten(2).to(part.dtype)
