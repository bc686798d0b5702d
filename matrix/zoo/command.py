"""`specmatrix zoo`: list, verify and train the fixture models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.zoo import absolute, card, registry
from specmatrix.matrix.zoo.registry import CHECKPOINTS, RECIPES
from specmatrix.reports.render.console import print_answer, waiting


def list_models(json_: bool = False) -> int:
    """Print the card of every model, or a JSON list of them. ConfigError if one is missing."""
    cards = []
    for name in RECIPES:
        if not (CHECKPOINTS / name / "card.json").is_file():
            raise ConfigError(
                f"zoo model {name!r} is missing in {CHECKPOINTS}; restore it or run `specmatrix zoo train {name}`"
            )
        cards.append(card.read(CHECKPOINTS / name))
    text = "\n".join(line for each in cards for line in (*card.lines(each), *absolute.lines(each.name)))
    return print_answer([asdict(each) for each in cards], text, json_)


def verify() -> int:
    """Compare every model file with its recorded checksum, and each target's oracle with the acceptance that it must
    reach. ConfigError names the first mismatch."""
    for name in RECIPES:
        with waiting(name):
            registry.verify(name, CHECKPOINTS)
        if name in registry.TARGETS:
            absolute.verify(name)
        print(f"{name}: whole")
    return 0


def train(
    names: list[str] | None = None,
    device: str = "cpu",
    out: Path = Path("out/zoo"),
    minutes: float = 8.0,
    quick: bool = False,
) -> int:
    """Train models from their recipes. ConfigError on an unknown name, an unavailable device or a full disk."""
    import torch
    from safetensors import SafetensorError

    from specmatrix.matrix.zoo import train as training

    names = names or list(RECIPES)
    for name in names:
        if name not in RECIPES:
            known = ", ".join(RECIPES)
            raise ConfigError(f"zoo model {shown(name)} is unknown; it must be one of {known}")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise ConfigError(f"device {shown(device)} is not available; it must be one of {there}")
    plan = training.plan_of(device, out, minutes, quick)
    try:
        with waiting(f"training {', '.join(names)}"):
            training.train(plan, names)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write checkpoints in {out}: {error}") from error
    return 0
