"""Tensors of a checkpoint folder, from safetensors only: no code of a checkpoint ever runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.core.errors import ConfigError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# What decides between near equals keeps the checkpoint's precision.
EXACT = ("e_score_correction_bias",)


def load_weights(
    path: str | Path, device: torch.device | str, dtype: torch.dtype, prefixes: tuple[str, ...] = ("",)
) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of the shards that model.safetensors.index.json lists.

    Floating tensors become `dtype`, but for the EXACT ones; integer and bool tensors keep theirs. prefixes: only
    tensors whose name starts with one of them, and only the shards that hold any. ConfigError if a file is missing,
    truncated or damaged, or if a shard lacks a tensor that the index promises.
    """
    folder = Path(path)
    weights: dict[str, Tensor] = {}
    for file, promised in _files(folder).items():
        if promised and not any(name.startswith(prefixes) for name in promised):
            continue
        tensors = _read(folder / file, device, dtype, prefixes)
        if lost := sorted(name for name in promised - tensors.keys() if name.startswith(prefixes)):
            raise ConfigError(f"{folder / file} lacks tensor {lost[0]!r} which {INDEX} promises")
        weights |= tensors
    return weights


def _files(folder: Path) -> dict[str, set[str]]:
    """Shard name -> tensor names promised by the index (none for a single file)."""
    if (folder / SINGLE).is_file():
        return {SINGLE: set()}
    index = folder / INDEX
    if not index.is_file():
        raise ConfigError(f"{folder} has no weights; {SINGLE} or {INDEX} is needed")
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards: dict[str, set[str]] = {}
        for name, file in weight_map.items():
            shards.setdefault(file, set()).add(name)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError):
        raise ConfigError(f"{index} is not a safetensors index; it must hold a weight_map of names to files") from None
    return shards


def _read(file: Path, device: torch.device | str, dtype: torch.dtype, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    if not file.is_file():
        raise ConfigError(f"{file} is missing; the checkpoint is incomplete")
    try:
        with safe_open(file, framework="pt", device=str(device)) as tensors:
            names = [name for name in tensors.keys() if name.startswith(prefixes)]  # noqa: SIM118 - not a mapping
            read = {name: tensors.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} cannot be read as safetensors ({error}); it is truncated or damaged") from None
    return {name: t.to(dtype) if t.is_floating_point() and not name.endswith(EXACT) else t for name, t in read.items()}


class Take:
    """Hands out tensors by name and expected shape, and at the end refuses names that nobody asked for."""

    def __init__(self, weights: Mapping[str, Tensor], where: str) -> None:
        self._left = dict(weights)
        self._where = where

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def __call__(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`. ConfigError if missing or of another shape."""
        if name not in self._left:
            raise ConfigError(f"{self._where}: tensor {name!r} is missing from the weights")
        tensor = self._left.pop(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{self._where}: tensor {name!r} has shape {tuple(tensor.shape)}, config.json implies {shape}"
            )
        return tensor

    def drop(self, *names: str) -> None:
        """Forget tensors that a checkpoint may carry and this engine derives or does not need."""
        for name in names:
            self._left.pop(name, None)

    def leave(self, prefix: str) -> None:
        """Leave all tensors under a prefix to another model of the same checkpoint."""
        self._left = {name: tensor for name, tensor in self._left.items() if not name.startswith(prefix)}

    def done(self) -> None:
        """ConfigError if a tensor was not used: the checkpoint has a part that this engine would leave out."""
        for name in list(self._left):
            if name.endswith("rotary_emb.inv_freq"):
                self.drop(name)
        if self._left:
            raise ConfigError(f"{self._where}: tensor {min(self._left)!r} has no place in this architecture")
