"""`specmatrix bench tune`: searches the tiles of `fused_linear` for this GPU and writes them to their table.

A tile is timed where it works: in a forward of a few layers with attention, as a CUDA graph, because neighbouring
kernels overlap. Tiles are compiled by several processes; then each projection in turn takes the fastest, with the other
projections at theirs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from specmatrix.benchmarks.gpu import device_seconds, forward
from specmatrix.benchmarks.metric import Metric
from specmatrix.benchmarks.shapes import SHAPES, LlamaShape, write_eagle3, write_target
from specmatrix.benchmarks.steady import PAIRS, Bench, freed
from specmatrix.engine.models.layers import FUSED_ROWS
from specmatrix.errors import ConfigError
from specmatrix.kernels.fused_linear import PART, Fusion, NextNorm, fused_linear, tiles
from specmatrix.kernels.fused_linear.tiles import MEMORY, LinearTile, Projection

LAYERS: Final = 4
# Requests whose steps need a tile of each number of rows.
BATCHES: Final = {16: 1, 32: 32, 64: 64, 128: 128}
# Programs of a kernel on one multiprocessor, at most.
MAX_SHARE: Final = 3
STAGES: Final = range(12, 1, -1)
# Shared memory that the driver takes per program, in bytes.
RESERVED: Final = 1024
# A tile is taken if the forward is faster by this factor.
GAIN: Final = 0.997
TURNS: Final = 3
COMPILERS: Final = 12
# Milliseconds of calls in each graph that is timed.
REPEATED: Final = 5
SWEEPS: Final = 2


def measure() -> Iterator[Metric]:
    """A metric for each shape and number of rows: the time of a forward before, over that after. Writes the table,
    without the tiles of those that were not faster in every turn.

    ConfigError without a GPU.
    """
    if not torch.cuda.is_available():
        raise ConfigError("benchmark 'tune' needs a GPU but this machine has none")
    card = torch.cuda.get_device_name()
    table = tiles.TILES.setdefault(card, dict(tiles.TILES[tiles.USUAL]))
    pool = ProcessPoolExecutor(min(COMPILERS, os.cpu_count() or 1), mp_context=get_context("spawn"))
    with pool, TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            few = replace(shape, layers=LAYERS)
            target = write_target(Path(folder) / name, few, "cuda")
            bench = Bench(name, str(target), str(write_eagle3(Path(folder) / f"{name}-eagle3", few, "cuda")))
            with freed(bench.engine(1)) as llm:
                for rows, batch in BATCHES.items():
                    run = forward(llm.loop.executor.target, batch, 1, bench.prompt)
                    timed = partial(device_seconds, run, "cuda", REPEATED)
                    before = dict(table)
                    for _ in range(SWEEPS):
                        for one in projections(shape, rows):
                            _search(one, table, card, timed, pool)
                    found = _compared(f"{name}_forward_of_{rows}_rows", table, before, timed)
                    if min(found.figures) < 1:
                        table.clear()
                        table.update(before)
                    tiles.write(tiles.TILES)
                    yield found


def projections(shape: LlamaShape, rows: int) -> list[Projection]:
    """The fused projections of a layer."""
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    gates = Projection("gate_up", rows, shape.hidden, shape.inner)
    if rows > FUSED_ROWS:
        return [gates]
    return [
        Projection("heads", rows, shape.hidden, heads),
        Projection("attended", rows, shape.heads * shape.head_dim, shape.hidden),
        gates,
        Projection("down", rows, shape.inner, shape.hidden),
    ]


def candidates(one: Projection, known: Sequence[LinearTile], processors: int) -> list[LinearTile]:
    """The known tiles, and those of which each of `processors` multiprocessors holds its share of the programs and no
    more, with the most stages. If more fitted, programs that start early would crowd onto the multiprocessors that are
    free by then."""
    gated = one.what == "gate_up"
    every = product((32, 64, 128), (64, 128, 256), (1,) if gated else (1, 2, 4, 8), (4, 8), (False, True))
    found, most = [], MEMORY[True] + RESERVED
    for columns, depth, ranges, warps, late in every:
        count = -(-one.columns // columns)
        share = -(-count * ranges // processors)
        if 2 * count * ranges < processors or share > MAX_SHARE or 2 * one.depth < ranges * tiles.MIN_RANGE:
            continue
        staged = (LinearTile(one.rows, columns, depth, ranges, warps, stages, late) for stages in STAGES)
        found += [each for each in staged if most // (each.memory(gated, early=True) + RESERVED) == share][:1]
    return list(dict.fromkeys([*known, *found]))


def _search(
    one: Projection, table: dict[Projection, LinearTile], card: str, timed: partial[float], pool: ProcessPoolExecutor
) -> None:
    """Put the fastest tile of a projection into the table."""
    best = table.get(one) or tiles.tile(one, card, early=True)
    others = [best, *(rows[one] for rows in tiles.TILES.values() if one in rows)]
    tried = candidates(one, others, torch.cuda.get_device_properties(0).multi_processor_count)
    works = dict(zip(tried, pool.map(partial(_compiles, one), tried), strict=True))
    fastest = _time(one, best, table, timed)
    for each in tried[1:]:
        if not works[each] or _time(one, each, table, timed) >= GAIN * fastest:
            continue
        # The card's clock drifts, so both by turns.
        turns = [(_time(one, best, table, timed), _time(one, each, table, timed)) for _ in range(TURNS)]
        if all(ours < GAIN * theirs for theirs, ours in turns):
            best, fastest = each, min(ours for _, ours in turns)
    table[one] = best
    _forget()


def _time(one: Projection, found: LinearTile, table: dict[Projection, LinearTile], timed: partial[float]) -> float:
    table[one] = found
    _forget()
    return timed()


def _compared(
    name: str, table: dict[Projection, LinearTile], before: dict[Projection, LinearTile], timed: partial[float]
) -> Metric:
    """The time with the tiles of before over that with the table's, by turns."""
    after, ratios = dict(table), []
    for _ in range(PAIRS):
        times = []
        for side in (before, after):
            table.clear()
            table.update(side)
            _forget()
            times.append(timed())
        ratios.append(times[0] / times[1])
    return Metric(name, ratios, None, note=f"{1e3 * times[1]:.3f} ms for {LAYERS} layers and the head")


def _forget() -> None:
    from specmatrix.kernels.fused_linear.triton import chosen

    chosen.cache_clear()


def _compiles(one: Projection, found: LinearTile) -> bool:
    """Compile a tile for a projection, in a process of its own; False if it does not fit the GPU."""
    from triton.runtime.errors import OutOfResources

    tiles.TILES[torch.cuda.get_device_name()] = {one: found}
    _forget()
    make = partial(torch.zeros, device="cuda", dtype=torch.bfloat16)
    gated, columns = one.what == "gate_up", one.columns
    x, out = make(one.rows, one.depth), make(one.rows, columns)
    fusion = Fusion(add=True)
    if gated:
        sums = torch.zeros(one.rows, -(-one.depth // PART), device="cuda")
        fusion = Fusion(sums, 1e-5, gated=True)
    elif one.what == "heads":
        rotation = torch.ones(one.rows, 32, device="cuda", dtype=torch.complex64)
        fusion = Fusion(rotation=rotation, heads=columns // 128)
    elif one.what == "attended":
        sums = torch.zeros(one.rows, -(-columns // PART), device="cuda")
        fusion = Fusion(add=True, next_norm=NextNorm(make(columns), make(one.rows, columns), sums))
    try:
        fused_linear(x, make(one.depth, (2 if gated else 1) * columns), out, fusion)
        torch.cuda.synchronize()
    except OutOfResources:
        return False
    return True
