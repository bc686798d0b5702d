"""Location of published checkpoints on this machine: the hub's cache or a user's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.published.pairs import TIP, ModelPair, Published


def locate(pair: ModelPair, models: Path | None = None) -> Mapping[str, Path]:
    """The folder of each of a pair's models. ConfigError without a GPU, or on the first missing folder.

    Whether a folder is complete and fits is for the engine that loads it.
    """
    if lacking := missing(pair, models):
        raise ConfigError(lacking[0])
    return {name: find(model, models) for name, model in pair.models.items()}


def missing(pair: ModelPair, models: Path | None = None) -> list[str]:
    """What this machine lacks to run a pair: a GPU, and each model that is not there."""
    import torch

    found = [] if torch.cuda.is_available() else [f"checkpoint {pair.name} needs a GPU but this machine has none"]
    for model in pair.models.values():
        try:
            find(model, models)
        except ConfigError as error:
            found.append(str(error))
    return found


def hub(environment: Mapping[str, str] = os.environ) -> Path:
    """The hub's download cache, chosen as by huggingface_hub."""
    if found := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(found).expanduser()
    if found := environment.get("HF_HOME"):
        return Path(found).expanduser() / "hub"
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def find(model: Published, models: Path | None = None) -> Path:
    """The folder of a checkpoint: `models`/organisation/name or `models`/name, or its commit in the hub's cache.

    ConfigError says how to fetch it. Does not check whether it is complete.
    """
    if models is not None:
        if not models.is_dir():
            raise ConfigError(f"folder {models} of checkpoints does not exist")
        folder = models / model.repo
        if (alone := models / model.repo.rpartition("/")[2]).is_dir():
            return alone
        if not folder.is_dir():
            raise ConfigError(f"{model.repo} is not in {models} (expected {folder}); {fetch(model, folder)}")
        return folder
    cache = hub() / f"models--{model.repo.replace('/', '--')}"
    commit = _commit(model, cache)
    folder = cache / "snapshots" / commit
    if commit and folder.is_dir():
        return folder
    others = sorted(path.name for path in (cache / "snapshots").glob("*") if path.is_dir())
    wanted = "" if model.revision == TIP else f" at {model.revision}"
    there = f", which has only other commits of it ({others[0]})" if others else ""
    raise ConfigError(f"{model.repo}{wanted} is not in {hub()}{there}; {fetch(model)}")


def _commit(model: Published, cache: Path) -> str:
    """The commit of a revision, "" if unknown."""
    if model.revision != TIP:
        return model.revision
    tip = cache / "refs" / TIP
    return tip.read_text(encoding="utf-8", errors="replace").strip() if tip.is_file() else ""


def fetch(model: Published, folder: Path | None = None) -> str:
    """How to fetch a checkpoint, as a clause for an error message."""
    revision = "" if model.revision == TIP else f" --revision {model.revision}"
    place = "" if folder is None else f" --local-dir {folder}"
    licence = " after its licence is accepted" if model.agreement else ""
    return f"`hf download {model.repo}{revision}{place}` fetches it{licence}"
