"""card.json: a checkpoint's recipe, training run and accuracy."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specmatrix.errors import ConfigError
from specmatrix.json_text import parse_json
from specmatrix.reports.stats import wilson


@dataclass(frozen=True, slots=True)
class Score:
    """`right` correct answers out of `total`, with the 95 % Wilson interval."""

    right: int
    total: int

    @property
    def share(self) -> float:
        return self.right / self.total

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.right, self.total)

    def as_dict(self) -> dict[str, Any]:
        return {
            "right": self.right,
            "total": self.total,
            "share": round(self.share, 4),
            "wilson95": [round(x, 4) for x in self.interval],
        }


@dataclass(frozen=True, slots=True)
class Card:
    """The figures of one checkpoint; accuracy: split to `Score.as_dict`."""

    name: str
    kind: str
    parameters: int
    data_hash: str
    recipe: dict[str, Any]
    training: dict[str, Any]
    accuracy: dict[str, dict[str, Any]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Store as card.json in the checkpoint's folder."""
        (folder / "card.json").write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> Card:
    """The card of a checkpoint folder. ConfigError if it cannot be read."""
    file = folder / "card.json"
    try:
        return Card(**parse_json(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"model card {file} cannot be read ({error}); restore it from the repository") from None


def lines(card: Card) -> list[str]:
    """The card as text for `zoo list`."""
    training = card.training
    out = [
        f"{card.name} ({card.kind}): {card.parameters:,} parameters, data {card.data_hash}",
        f"  trained {training['steps']:,} steps, {training['tokens'] / 1e6:.0f} M tokens, {training['seconds']:.0f} s"
        f" on {training['device']},"
        f" loss {training['loss']:.4f}",
    ]
    for split, score in card.accuracy.items():
        low, high = score["wilson95"]
        out.append(f"  accuracy {split}: {score['share']:.1%} of {score['total']} [{low:.1%}, {high:.1%}]")
    return out
