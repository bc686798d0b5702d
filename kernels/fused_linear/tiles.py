"""The tiles of `fused_linear`: those that `specmatrix bench tune` found fastest, and a rule for other sizes."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Final, NamedTuple

# Card -> "PROJECTION ROWS x DEPTH x COLUMNS" -> the fields of a LinearTile.
FILE: Final = Path(__file__).with_name("tiles.json")
# The card whose tiles serve where nobody has tuned.
USUAL: Final = "NVIDIA H100 80GB HBM3"
# Rows of a tile: tensor cores take no fewer.
ROWS: Final = (16, 32, 64, 128)
# Smallest number of programs per projection, and smallest range of K per program.
PROGRAMS, MIN_RANGE = 96, 512
# Tiles of the widest projection that may be split along K.
MAX_TILES: Final = 1024
# Columns from which a tile is computed transposed.
TRANSPOSED_COLUMNS: Final = 64
# Shared memory per program, in bytes, where kernels launch early and where they do not.
MEMORY: Final = {True: 227 * 1024, False: 96 * 1024}


class LinearTile(NamedTuple):
    """Rows, columns and depth of a program's tile, and the number of ranges of K.

    late: signal the next kernel after the product instead of before it, where its programs would otherwise crowd onto
    few SMs. With as many stages as one SM holds for one program, a kernel's programs spread over the SMs that its
    predecessor leaves free.
    """

    rows: int
    columns: int
    depth: int
    ranges: int
    warps: int
    stages: int
    late: bool = False

    def memory(self, gated: bool, early: bool) -> int:
        """Shared memory of a program's loads in bytes, for elements of 2 bytes. early: as of `tile`; Hopper's products
        read their operands while the next stage is loaded."""
        stages = self.stages - (self.columns < TRANSPOSED_COLUMNS or not early)
        return 2 * stages * self.depth * (self.rows + self.columns * (2 if gated else 1))


class Projection(NamedTuple):
    """A projection over few rows. what: "heads" (queries, keys and values), "attended" (the output of attention),
    "gate_up" or "down". columns: of the output."""

    what: str
    rows: int
    depth: int
    columns: int

    @property
    def key(self) -> str:
        """Its name in the table."""
        return f"{self.what} {self.rows} x {self.depth} x {self.columns}"


Table = dict[str, dict[Projection, LinearTile]]


def read() -> Table:
    """The table of all cards."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return {card: {_projection(key): LinearTile(*row) for key, row in rows.items()} for card, rows in found.items()}


def write(table: Table) -> None:
    """Write the table, a line for each projection."""
    cards = (
        f' "{card}": {{\n'
        + ",\n".join(f'  "{one.key}": {json.dumps([*table[card][one]])}' for one in sorted(table[card]))
        + "\n }"
        for card in sorted(table)
    )
    FILE.write_text("{\n" + ",\n".join(cards) + "\n}\n", encoding="utf-8")


def projection(rows: int, depth: int, columns: int, gated: bool, add: bool) -> Projection:
    """The projection of `rows` rows. With `add`, x is the output of attention or, if it is wider, of the gates."""
    what = "gate_up" if gated else "heads" if not add else "attended" if depth <= columns else "down"
    return Projection(what, next(size for size in ROWS if size >= rows), depth, columns)


def tile(one: Projection, card: str, early: bool) -> LinearTile:
    """A fast tile for elements of 2 bytes. card: its name; early: the kernel is launched before its predecessor's end.

    Without an entry it is that of the nearest size, split along K until its programs fill a GPU.
    """
    known = TILES.get(card) or TILES[USUAL]

    def distance(other: Projection) -> tuple[float, float]:
        sizes = abs(log(other.columns / one.columns)) + abs(log(other.depth / one.depth))
        return abs(log(other.rows / one.rows)), sizes

    nearest = min((each for each in known if each.what == one.what), key=distance)
    found, gated = known[nearest]._replace(rows=one.rows), one.what == "gate_up"
    if nearest != one and not gated:
        found = found._replace(ranges=ranges(one.columns, found.columns, one.depth))
    fewer = (found._replace(stages=each) for each in range(found.stages, 1, -1))
    return next((each for each in fewer if each.memory(gated, early) <= MEMORY[early]), found._replace(stages=2))


def ranges(columns: int, width: int, depth: int) -> int:
    """The number of ranges of K for tiles of `width` columns; gate products have one."""
    found, tiles = 1, -(-columns // width)
    while tiles * found < PROGRAMS and depth >= 2 * found * MIN_RANGE:
        found *= 2
    return found


def _projection(key: str) -> Projection:
    what, sizes = key.split(" ", 1)
    return Projection(what, *map(int, sizes.split(" x ")))


TILES: Final = read()
