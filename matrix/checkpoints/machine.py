"""Whether a machine can run a pair: its GPUs, and the weights that lie on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.core.errors import ConfigError
from engine.models.config import read_raw
from engine.models.weights import count_numbers
from matrix.checkpoints.needs import GIB, config_of, needs
from matrix.checkpoints.pairs import Pair
from matrix.checkpoints.published import MODELS, Published
from matrix.checkpoints.size import stored
from matrix.checkpoints.store import find


def gpus() -> tuple[int, ...]:
    """Bytes of memory of each GPU that this machine shows."""
    import torch

    return tuple(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))


def locate(pair: Pair, memory: tuple[int, ...], models: Path | None = None) -> Mapping[str, Path]:
    """The folder of each of a pair's models, whole by the headers of its files, for GPUs with `memory` bytes each.

    ConfigError, one sentence, on the first thing that is missing: a GPU, its memory, a checkpoint, or a part of one.
    """
    if short := _shortage(pair, memory):
        raise ConfigError(short)
    return {name: _folder(pair, name, models) for name in pair.models}


def missing(pair: Pair, memory: tuple[int, ...], models: Path | None = None) -> list[str]:
    """All that `locate` would refuse one after the other, a sentence each."""
    found = [short] if (short := _shortage(pair, memory)) else []
    for name in pair.models:
        try:
            _folder(pair, name, models)
        except ConfigError as error:
            found.append(str(error))
    return found


def _shortage(pair: Pair, memory: tuple[int, ...]) -> str | None:
    total = needs(pair).total
    if not memory:
        return f"checkpoint {pair.name} needs a GPU with {total / GIB:.1f} GiB of memory and this machine shows none"
    # The engine takes the first that it sees.
    if memory[0] < total:
        return (
            f"checkpoint {pair.name} needs {total / GIB:.1f} GiB of GPU memory and the GPU here has "
            f"{memory[0] / GIB:.1f} GiB"
        )
    return None


def _folder(pair: Pair, name: str, models: Path | None) -> Path:
    folder = find(MODELS[name], models)
    _whole(MODELS[name], folder, config_of(MODELS[pair.target]).num_layers)
    return folder


def _whole(model: Published, folder: Path, target_layers: int) -> None:
    """ConfigError if config.json is another than the published one, or the files do not hold what it says."""
    raw = read_raw(folder)
    for field, value in model.config.items():
        if raw.get(field) != value:
            raise ConfigError(
                f"{folder / 'config.json'}: {field} is {raw.get(field)!r}, {model.repo} is known with {value!r}; "
                "correct the table of published checkpoints, or fetch the right files"
            )
    config, there = config_of(model), count_numbers(folder)
    if there != stored(config, target_layers):
        raise ConfigError(
            f"{folder} holds {there:,} numbers, config.json implies {stored(config, target_layers):,}; a file is "
            "missing or of another model"
        )
    if config.draft is None and not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"{folder / 'tokenizer.json'} is missing; the checkpoint brings no tokenizer")
