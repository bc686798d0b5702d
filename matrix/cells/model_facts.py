"""The facts of the models on the axes that configuration resolution needs; a test reads them from the checkpoints."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from specmatrix.engine.core.config.asked import DraftFacts, Facts
from specmatrix.matrix.cells.cell import Cell


class ModelFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of model_facts.yaml: targets and drafts by name."""

    targets: dict[str, Facts]
    drafts: dict[str, DraftFacts]


_TABLE: Final = msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=ModelFacts)
TARGETS: Final = _TABLE.targets
DRAFTS: Final = _TABLE.drafts


def zoo_facts(cell: Cell) -> Facts:
    """The facts of a cell's target and draft, on a CPU."""
    return model_facts(cell.target, cell.draft)


@cache
def model_facts(target: str, draft: str | None = None) -> Facts:
    """The facts of a zoo target and its draft, which may be a target too, on a CPU."""
    if draft in TARGETS:
        one = TARGETS[draft]
        return replace(TARGETS[target], draft=DraftFacts(one.architecture, one.vocab_size, one.hidden_size))
    return replace(TARGETS[target], draft=None if draft is None else DRAFTS[draft])
