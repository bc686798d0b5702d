"""Tensors of a checkpoint folder, from safetensors only: no code from a checkpoint ever runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specmatrix.engine.models.config_reader import read_json
from specmatrix.errors import ConfigError, is_interrupt, shown, text_of

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_NAME: Final = 255  # of a file, in bytes
# The largest published models have 70,000, for 384 experts in each of 60 layers.
MAX_TENSORS: Final = 80_000
# Tensors that decide between close values keep the checkpoint's precision.
EXACT = ("e_score_correction_bias", "A_log", "dt_bias")
# Supported storage types, in safetensors' names; anything else is quantized, with separate scales.
FLOATS: Final = ("F64", "F32", "BF16", "F16")
# Ids and masks.
WHOLE: Final = ("I64", "I32", "BOOL")


def load_weights(
    path: str | Path, device: torch.device | str, dtype: torch.dtype, prefixes: tuple[str, ...] = ("",)
) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of the shards that model.safetensors.index.json lists.

    Floating tensors become `dtype`, except the EXACT ones; integer and bool tensors keep theirs. prefixes: only
    tensors whose name starts with one of them, and only the shards that hold any. A text model beside a vision tower
    gets the names of one without. Raises ConfigError if a file is missing, truncated or damaged, if a shard lacks a
    tensor that the index lists, or if a tensor is quantized.
    """
    folder = Path(path)
    weights: dict[str, Tensor] = {}
    for file, promised in _files(folder).items():
        wanted = {name for name in promised if name.startswith(prefixes)}
        if promised and not wanted:
            continue
        with _opened(folder / file, device) as tensors:
            names = {name for name in tensors.keys() if name.startswith(prefixes)}  # noqa: SIM118 - not a mapping
            _promised(folder / file, wanted, names)
            for name in sorted(wanted or names):
                _plain(folder / file, name, tensors.get_slice(name).get_dtype())
                tensor = tensors.get_tensor(name)
                floating = tensor.is_floating_point() and not name.endswith(EXACT)
                weights[name.replace("model.language_model.", "model.", 1)] = tensor.to(dtype) if floating else tensor
    return weights


def has_weights(path: str | Path) -> bool:
    """Whether a checkpoint folder has any safetensors files, damaged or not."""
    return any((Path(path) / name).is_file() for name in (SINGLE, INDEX))


def tensor_names(path: str | Path) -> frozenset[str]:
    """The names of all tensors in a checkpoint folder, without reading them. ConfigError as for `load_weights`."""
    names: set[str] = set()
    for file, promised in _files(Path(path)).items():
        if promised:
            names |= promised
            continue
        with _opened(Path(path) / file, "cpu") as tensors:
            names |= set(tensors.keys())
    return frozenset(names)


def count_numbers(path: str | Path, prefixes: tuple[str, ...] = ("",)) -> int:
    """Number of floating-point numbers in a checkpoint folder, from the files' headers; no tensor is read.

    prefixes: only tensors whose name starts with one of them. ConfigError as for `load_weights`: missing or truncated
    files are detected here.
    """
    folder, total = Path(path), 0
    for file, promised in _files(folder).items():
        with _opened(folder / file, "cpu") as tensors:
            names = set(tensors.keys())
            _promised(folder / file, promised, names)
            for name in (name for name in promised or names if name.startswith(prefixes)):
                header = tensors.get_slice(name)
                _plain(folder / file, name, header.get_dtype())
                total += math.prod(header.get_shape()) if header.get_dtype() in FLOATS else 0
    return total


def _files(folder: Path) -> dict[str, set[str]]:
    """Shard name -> tensor names listed in the index (none for a single file)."""
    if (folder / SINGLE).is_file():
        return {SINGLE: set()}
    index = folder / INDEX
    if not index.is_file():
        if pickles := sorted(folder.glob("*.bin")):
            raise ConfigError(
                f"{folder} has no safetensors weights, only {pickles[0].name}; convert it, pickles are never loaded"
            )
        raise ConfigError(f"{folder} has no weights; it must contain {SINGLE} or {INDEX}")
    try:
        weight_map = read_json(index)["weight_map"]
        shards: dict[str, set[str]] = {}
        for name, file in weight_map.items():
            shards.setdefault(file, set()).add(name)
        outside = sorted(f for f in shards if Path(f).name != f or len(f) > MAX_NAME or not f.isprintable())
    except (KeyError, AttributeError, TypeError):
        raise ConfigError(
            f"{index} is not a safetensors index; it must hold a weight_map from tensor names to files"
        ) from None
    _check_number(index, len(weight_map))
    if outside:
        raise ConfigError(f"{index} names the shard {shown(outside[0])}; a shard must be a file of the index's folder")
    return shards


@contextmanager
def _opened(file: Path, device: torch.device | str) -> Iterator[Any]:
    """The open safetensors file, whose type is not exported. ConfigError if it is missing or damaged."""
    try:
        if not file.is_file():
            raise ConfigError(f"{file} is missing; the checkpoint is incomplete")
        with safe_open(file, framework="pt", device=numbered(device)) as tensors:
            _check_number(file, len(tensors.keys()))
            yield tensors
    except (SafetensorError, OSError) as error:
        if is_interrupt(error):  # a TimeoutError is an OSError
            raise
        raise ConfigError(
            f"{file} cannot be read as safetensors ({text_of(error)}); it is truncated or damaged"
        ) from None


def _check_number(file: Path, tensors: int) -> None:
    if tensors > MAX_TENSORS:
        raise ConfigError(f"{file} lists {tensors:,} tensors; allowed: at most {MAX_TENSORS:,}")


def _promised(file: Path, wanted: set[str], names: set[str]) -> None:
    if lost := sorted(wanted - names):
        raise ConfigError(f"{file} lacks tensor {shown(lost[0])} that {INDEX} lists")


def numbered(device: torch.device | str) -> str:
    """A GPU with its index: safetensors takes a bare "cuda" as the first GPU, torch as the current one."""
    place = torch.device(device)
    return f"cuda:{torch.cuda.current_device()}" if place.type == "cuda" and place.index is None else str(place)


def _plain(file: Path, name: str, kind: str) -> None:
    if kind not in FLOATS + WHOLE:
        raise ConfigError(
            f"{file}: tensor {shown(name)} is stored as {kind}; quantized weights are not supported; allowed: "
            f"{', '.join(FLOATS)}"
        )


class WeightReader:
    """Returns tensors by name and expected shape, and finally refuses tensors that were not read.

    It empties `weights`: a tensor that a model copies is freed at once, not when the model is complete.
    """

    def __init__(self, weights: dict[str, Tensor], where: str) -> None:
        self._left = weights
        self._where = where

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def __call__(self, name: str, *shape: int) -> Tensor:
        """The floating tensor `name`. ConfigError if it is missing, has another shape, or holds integers, NaN
        or infinity."""
        tensor = self._take(name, shape)
        if not tensor.is_floating_point():
            raise ConfigError(
                f"{self._where}: tensor {name!r} holds {_kind(tensor)}; it must hold floating-point numbers"
            )
        if not all(end.isfinite() for end in tensor.aminmax()):
            raise ConfigError(f"{self._where}: tensor {name!r} holds NaN or infinite numbers; the file is damaged")
        return tensor

    def ids(self, name: str, *shape: int) -> Tensor:
        """The integer tensor `name`, int64. ConfigError if it is missing, has another shape or holds floats."""
        tensor = self._take(name, shape)
        if tensor.is_floating_point() or tensor.dtype is torch.bool:
            raise ConfigError(f"{self._where}: tensor {name!r} holds {_kind(tensor)}; it must hold integers")
        return tensor.to(torch.int64)

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._left:
            raise ConfigError(f"{self._where}: tensor {name!r} is missing from the weights")
        tensor = self._left.pop(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{self._where}: tensor {name!r} has shape {tuple(tensor.shape)}, but config.json implies {shape}"
            )
        return tensor

    def drop(self, *names: str) -> None:
        """Ignore tensors that a checkpoint may contain but this engine derives or does not need."""
        for name in names:
            self._left.pop(name, None)

    def leave(self, prefix: str) -> None:
        """Leave all tensors under a prefix to another model from the same checkpoint."""
        self.drop(*[name for name in self._left if name.startswith(prefix)])

    def done(self) -> None:
        """Raise ConfigError if a tensor was not used: the engine would omit a part of the checkpoint."""
        self.drop(*[name for name in self._left if name.endswith("rotary_emb.inv_freq")])
        if self._left:
            raise ConfigError(f"{self._where}: tensor {shown(min(self._left))} does not belong to this architecture")


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
