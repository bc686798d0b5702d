"""How much of the text after a cached page its draft KV depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specmatrix.matrix.cells.cell import Cell

# Draft KV at a position also depends on the next token (sglang#10846).
SHIFTED: Final = ("standalone", "eagle", "eagle3", "nextn")


def span_of(cell: Cell, resolved: Mapping[str, Any]) -> int:
    """Number of tokens after a position that its draft KV depends on; one per draft layer with a layer per step."""
    if cell.own_traits is not None:
        return cell.own_traits.key_span
    if cell.algorithm not in SHIFTED:
        return 0
    return int(resolved["num_steps"]) if resolved["enable_multi_layer_eagle"] else 1
