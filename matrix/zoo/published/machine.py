"""Whether this machine can run a pair: its GPUs and its checkpoint files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from specmatrix.engine.core.config.asked import GIB
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.eagle.formats import load_draft_config
from specmatrix.engine.models.weights import count_numbers
from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.published.models import MODELS, Published
from specmatrix.matrix.zoo.published.needs import Configs, config_of, needs
from specmatrix.matrix.zoo.published.pairs import ModelPair
from specmatrix.matrix.zoo.published.size import possible, stored
from specmatrix.matrix.zoo.published.store import find


def gpus() -> tuple[int, ...]:
    """Memory of each visible GPU in bytes."""
    import torch

    return tuple(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))


def locate(pair: ModelPair, memory: tuple[int, ...], models: Path | None = None) -> Mapping[str, Path]:
    """The folder of each of a pair's models, complete according to the file headers, for GPUs with `memory` bytes.

    ConfigError on the first missing requirement: a GPU, its memory, a checkpoint, or a file of one.
    """
    if short := _shortage(pair, memory):
        raise ConfigError(short)
    folders = {name: find(MODELS[name], models) for name in pair.models}
    configs = {name: _agreed(MODELS[name], folder) for name, folder in folders.items()}
    for name, folder in folders.items():
        _whole(folder, configs[name], configs[pair.target].num_layers)
    # The files may contain fields that were not known.
    if short := _shortage(pair, memory, configs):
        raise ConfigError(short)
    return folders


def missing(pair: ModelPair, memory: tuple[int, ...], models: Path | None = None) -> list[str]:
    """All errors that `locate` would raise: at most one for the machine and one for each model."""
    found = [short] if (short := _shortage(pair, memory)) else []
    target_layers = config_of(MODELS[pair.target]).num_layers
    for model in pair.models.values():
        try:
            folder = find(model, models)
            _whole(folder, _agreed(model, folder), target_layers)
        except ConfigError as error:
            found.append(str(error))
    if not found:
        try:
            locate(pair, memory, models)
        except ConfigError as error:
            found.append(str(error))
    return found


def _shortage(pair: ModelPair, memory: tuple[int, ...], configs: Configs | None = None) -> str | None:
    total = needs(pair, configs).total
    if not memory:
        return f"checkpoint {pair.name} needs a GPU with {total / GIB:.1f} GiB of memory but this machine has none"
    # The engine uses the first visible GPU.
    if memory[0] < total:
        return (
            f"checkpoint {pair.name} needs {total / GIB:.1f} GiB of GPU memory but this GPU has "
            f"{memory[0] / GIB:.1f} GiB"
        )
    return None


def _agreed(model: Published, folder: Path) -> ModelConfig:
    """The content of config.json. ConfigError if it contradicts a verified field of the published one."""
    found, known = load_draft_config(folder), config_of(model)
    for name in model.sure or [field.name for field in fields(ModelConfig)]:
        said, expected = getattr(found, name), getattr(known, name)
        if said != expected:
            raise ConfigError(
                f"{folder / 'config.json'}: {name} must be {expected!r} for {model.repo}, got {said!r}; fetch the "
                "right files, or correct the table of published checkpoints"
            )
    return found


def _whole(folder: Path, config: ModelConfig, target_layers: int) -> None:
    """ConfigError if the files' parameter count does not match config.json."""
    there = count_numbers(folder)
    if there not in possible(config, target_layers):
        implied = stored(config, target_layers)
        raise ConfigError(
            f"{folder} has {there:,} parameters, config.json implies {implied:,}; a file is missing or belongs to a "
            "different model"
        )
    if config.draft is None and not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"{folder / 'tokenizer.json'} is missing; the checkpoint has no tokenizer")
