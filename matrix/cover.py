"""Choosing cells: enumeration of all that run, a t-wise cover by covertable, and the cells that may never drop."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import combinations, product
from math import prod
from typing import Any, Final

from matrix.axes import AXES, LAUNCH, NAMES
from matrix.cell import Cell, order
from matrix.constraints import CONSTRAINTS, Constraint, explain
from matrix.growth import launches

# Another salt gives another cover of about the same size; this one is as good as any.
SALT: Final = "specmatrix"
NEGATIVES: Final = {"smoke": 0, "pr": 2, "nightly": 8}
STRENGTHS: Final = {"smoke": 1, "pr": 2, "nightly": 3}

# One row per way in which an incident could come back; the id, and what it must show.
PRESETS: Final[dict[str, str]] = {
    "eagle3": "sglang#21062: automatic sizes become a tree, so v1; the worker is chosen after the sizes",
    "eagle3.s3.k4.n8.pair": "sglang#21062: topk > 1 without an explicit version runs v1 and says why",
    "standalone.pair": "sglang#21062: an automatic chain runs v2",
    "eagle3.s3.sync.ragged": "sglang#21062: the explicit off path",
    "eagle3.s3.k1.n4.v1.ragged": "sglang#21062: explicit v1 is honoured",
    "eagle3.s3.k4.n8.v2.ragged": "sglang#26866: bonus stride, steps + 1 != draft tokens, batch >= 2",
    "eagle3.s3.k4.n8.v2.p16.ragged.temperature": "sglang#26866: tree compaction with pages and sampling",
    "standalone.s2.k2.n6.v2.p4.pair": "sglang#26997: trees on v2 for a drafter without hidden states",
    "eagle3.s5.k4.n16.v2.tight.burst": "sglang#26981: the wide tree and the retraction whose tests a revert deleted",
    "eagle3.s5.v2.m4.burst": "sglang#24055: one depth while the batch shrinks and grows",
    "eagle3.tiers.v1.waves.length": "sglang#24055: a slot per range of batch sizes while 1, 8, 32, 8, 1 requests run",
    "eagle3.tiers.v2.waves.length": "sglang#23336: the depth moves while a round of another depth is in flight",
    "eagle3.table.v2.waves.length": "sglang#24055: the table that ships, over every one of its ranges",
    "eagle3.table.v1.p4.waves.length": "sglang#24055: the table that ships, without a round in flight",
    "eagle.tiers.v2.p16.waves.mixed.length": "sglang#24055: slots of sampled and greedy requests together",
    "nextn.deepseek.tiers.v1.waves.length": "sglang#23289: bundled layers adapt as a chain of the first one",
    "nextn.deepseek.tiers.v2.p4.waves.length": "sglang#23289: the same with a round in flight",
    "eagle3.flat.v2.waves.length": "sglang#24055: an older file is one slot for 1, 8, 32, 8, 1 requests",
    "eagle3.flat.v1.p4.ragged.stream": "sglang#24055: an older file's slot rises and falls over the turns of sessions",
    "nextn.deepseek.flat.v2.p16.c7.tight.ragged": "sglang#24055: an older file's slot under retraction",
    "eagle3.tiers.v2.p16.tight.ragged": "sglang#26354: reservations by the widest round do not drift",
    "eagle.tiers.v2.p4.c7.tight.m4.burst": "sglang#23336: no negative growth when the depth falls under retraction",
    "eagle3.tiers.v2.p64.nocache.ragged.abort_running": "sglang#23456: an aborted request's round is not observed",
    "eagle3.tiers.v2.p16.ragged.stream": "sglang#22651: a session inherits exactly while the depth moves",
    "eagle3.qwen3.tiers.v2.p4.nocache.c7.ragged": "sglang#23331: windows are covered for the widest round",
    "none.v2.p4.c7.ragged.mixed": "sglang#24999: the relay under plain decoding",
    "standalone.s3.v2.p64.c32.pair": "sglang#24999: the relay of a drafter with KV of its own",
    "eagle3.s5.v2.p16.ragged.length": "sglang#22651: a length finish inside an accepted run, one round in flight",
    "eagle3.s5.v2.p4.ragged.stop_token": "sglang#22651: a stop token inside an accepted run",
    "eagle3.s3.k2.n6.v2.p64.nocache.ragged.abort_running": "sglang#22651: no page leaks from an abort in flight",
    "standalone.s5.v2.p16.tight.m4.burst.abort_queued": "sglang#22651: no page leaks from a retraction and an abort",
    "none.qwen3.v2.p4.nocache.c7.ragged": "sliding windows: pages slide away between chunks and rounds in flight",
    "eagle3.qwen3.s3.k4.n8.v2.p16.nocache.ragged": "sliding windows: a tree looks back from each depth of its own",
    "eagle3.qwen3.s5.v1.p64.nocache.burst.length": "sliding windows: pages longer than the window",
    "standalone.qwen3.s3.k2.n6.v2.p4.nocache.c7.tight.ragged": "sliding windows: a retracted request comes back",
    "eagle3.qwen3.s3.v2.p4.nocache.ragged.stream": "sglang#22900: a session's turn ends where its window may not slide",
    "none.deepseek.v2.p4.c7.ragged.mixed": "latent attention and experts under plain decoding",
    "nextn.deepseek.s2.v2.ragged": "a prediction layer for each step of a chain",
    "nextn.deepseek.s2.v2.m4.burst": "sglang#10846: a page's key reaches a token further for each layer of a chain",
    "nextn.deepseek.s2.v1.p16.c7.burst": "a prediction layer for each step, over chunks and cached prefixes",
    "nextn.deepseek.s3.k4.n8.v2.p16.ragged.temperature": "latent keys of an accepted path are moved together",
    "nextn.deepseek.s5.v2.p4.tight.burst": "latent attention: retraction under a chain deeper than the layers",
    "nextn.deepseek.s2.v2.p64.ragged.stream": "a session's turns over bundled layers, each a token further on",
    "none.v1.p256.tight.ragged.stream.length": "sessions: turns are retracted from large pages",
    "none.v2.p256.c32.tight.burst.stream.length": "sessions: the same over chunks, a step in flight",
    "none.v2.p256.tight.ragged.stream.length.abort_running": "sessions: aborted turns leave large pages whole",
    "eagle3.s3.k1.n4.v1.p256.c32.tight.ragged.stream.length": "sessions: drafted turns in large pages, lag 0",
    "eagle3.s3.k1.n4.v2.p256.c32.tight.ragged.stream.length": "sessions: drafted turns in large pages, lag 1",
    "none.qwen3.v2.p256.nocache.c32.tight.ragged.stream.length": "sessions: windows in pages larger than they are",
    "none.c32.ragged.stream": "sessions: turns over chunks",
    "none.c7.tight.ragged.stream.length": "sessions: turns are retracted between small chunks",
    "eagle3.s3.k1.n4.sync.c32.ragged.stream": "sessions: drafted turns without overlap, over chunks",
    "eagle3.s3.k4.n8.v2.p64.tight.burst.stream.length": "sglang#27024: trees in more sessions than memory holds",
    "none.p256.burst.stream.abort_running": "sessions: inputs that are too long, and aborts, leak no large page",
    "none.qwen3.p256.nocache.burst.stream.abort_running": "sessions: the same under sliding windows",
    "none.qwen3.nocache.c7.tight.ragged.stream.length": "sessions: windowed turns are retracted between chunks",
    "ngram.s3.k4.n8.ragged": "an n-gram tree of an asked depth, breadth and width",
    "ngram.k1.n8.burst": "an n-gram chain",
    "dflash.n4.ragged": "a block narrower than the draft was made for",
    "standalone.s3.v1.p256.tight.ragged.stream.length": "sessions: a second model, retracted, large pages, lag 0",
    "standalone.s3.v2.p256.tight.ragged.stream.length": "sessions: a second model, retracted, large pages, lag 1",
    "standalone.s3.v2.p256.burst.stream.abort_running": "sessions: a second model, aborts in large pages",
    "standalone.s3.v2.c32.tight.ragged.stream.length": "sessions: a second model, retracted between chunks",
    "standalone.s3.v1.tight.burst.stream.length": "sessions: a second model, more than memory holds, lag 0",
    "standalone.s3.v2.tight.burst.stream.length": "sessions: a second model, more than memory holds, lag 1",
    "eagle.s3.k1.n4.v1.p256.tight.ragged.stream.length": "sessions: hidden states, retracted, large pages, lag 0",
    "eagle.s3.k1.n4.v2.p256.tight.ragged.stream.length": "sessions: hidden states, retracted, large pages, lag 1",
    "eagle.s3.k1.n4.v2.p256.burst.stream.abort_running": "sessions: hidden states, aborts in large pages",
    "eagle.s3.k1.n4.v2.c32.tight.ragged.stream.length": "sessions: hidden states, retracted between chunks",
    "eagle.s3.k1.n4.v1.tight.burst.stream.length": "sessions: hidden states, more than memory holds, lag 0",
    "eagle.s3.k1.n4.v2.tight.burst.stream.length": "sessions: hidden states, more than memory holds, lag 1",
    "nextn.deepseek.s3.v1.p256.tight.ragged.stream.length": "sessions: bundled layers, retracted, large pages, lag 0",
    "nextn.deepseek.s3.v2.p256.tight.ragged.stream.length": "sessions: bundled layers, retracted, large pages, lag 1",
    "nextn.deepseek.s3.v2.p256.burst.stream.abort_running": "sessions: bundled layers, aborts in large pages",
    "nextn.deepseek.s3.v2.c32.tight.ragged.stream.length": "sessions: bundled layers, retracted between chunks",
    "nextn.deepseek.s3.v1.tight.burst.stream.length": "sessions: bundled layers, more than memory holds, lag 0",
    "nextn.deepseek.s3.v2.tight.burst.stream.length": "sessions: bundled layers, more than memory holds, lag 1",
    "dflash.v1.p256.tight.ragged.stream.length": "sessions: blocks, retracted, large pages, lag 0",
    "dflash.v2.p256.tight.ragged.stream.length": "sessions: blocks, retracted, large pages, lag 1",
    "dflash.v2.p256.burst.stream.abort_running": "sessions: blocks, aborts in large pages",
    "dflash.v2.c32.tight.ragged.stream.length": "sessions: blocks, retracted between chunks",
    "dflash.v1.tight.burst.stream.length": "sessions: blocks, more than memory holds, lag 0",
    "dflash.v2.tight.burst.stream.length": "sessions: blocks, more than memory holds, lag 1",
    "ngram.p256.tight.ragged.stream.length": "sessions: n-grams, retracted, large pages",
    "ngram.p256.burst.stream.abort_running": "sessions: n-grams, aborts in large pages",
    "ngram.c32.tight.ragged.stream.length": "sessions: n-grams, retracted between chunks",
    "ngram.tight.burst.stream.length": "sessions: n-grams, more than memory holds",
    "eagle3.qwen3.s3.v1.p256.nocache.tight.ragged.stream.length": "sessions: windows, short of large pages, lag 0",
    "eagle3.qwen3.s3.v2.p256.nocache.tight.ragged.stream.length": "sessions: windows, short of large pages, lag 1",
    "standalone.qwen3.s3.v1.p256.nocache.tight.ragged.stream.length": "sessions: a windowed second model, lag 0",
    "standalone.qwen3.s3.v2.p256.nocache.tight.ragged.stream.length": "sessions: a windowed second model, lag 1",
    "none.qwen3.v1.p256.nocache.tight.ragged.stream.length": "sessions: windows in large pages, lag 0",
    "eagle3.qwen3.s3.v2.p256.nocache.burst.stream.abort_running": "sessions: windows, aborts in large pages",
    "eagle3.qwen3.s3.v2.nocache.c32.tight.ragged.stream.length": "sessions: windows, short of memory over chunks",
    "eagle3.qwen3.s3.v1.nocache.tight.burst.stream.length": "sessions: windows, more than memory holds, lag 0",
    "eagle3.qwen3.s3.v2.nocache.tight.burst.stream.length": "sessions: windows, more than memory holds, lag 1",
    "nextn.deepseek.s3.k4.n8.v2.ragged": "latent keys of a tree, token by token, a round in flight",
    "nextn.deepseek.s3.k4.n8.v2.p64.ragged": "latent keys of a tree in pages larger than it is",
    "nextn.deepseek.s3.k4.n8.v2.ragged.stream": "sessions: trees of bundled layers, token by token",
    "nextn.deepseek.s3.k4.n8.v2.p64.ragged.stream": "sessions: trees of bundled layers, a page cut inside a tree",
    "nextn.deepseek.s3.k4.n8.v2.tight.burst.stream.length": "sessions: trees of bundled layers, more than memory holds",
    "none.v1.p256.snug.pair.stream.length": "sessions: a retracted turn comes back to its KV, large pages, lag 0",
    "none.v2.p16.c7.snug.pair.stream.length": "sessions: a retracted turn comes back to its KV, over chunks, lag 1",
    "eagle3.s3.k1.n4.v1.p64.snug.pair.stream.length": "sessions: a drafted chain comes back, lag 0",
    "eagle3.s3.k1.n4.v1.p256.snug.pair.stream.length": "sessions: a drafted chain comes back to large pages, lag 0",
    "eagle3.s3.k1.n4.v2.p256.snug.pair.stream.length": "sessions: a drafted chain comes back to large pages, lag 1",
    "eagle3.s3.k4.n8.v2.p16.snug.pair.stream.length": "sessions: a tree comes back, lag 1",
    "eagle3.s3.v2.p4.snug.pair.stream.length.abort_running": "sessions: what came back is aborted and goes back again",
    "eagle.s3.k1.n4.v2.p256.snug.pair.stream.length": "sessions: a chain over hidden states comes back, lag 1",
    "eagle.s3.k4.n8.v1.p4.snug.pair.stream.length": "sessions: a tree over hidden states comes back, lag 0",
    "standalone.s3.v2.p64.snug.pair.stream.length": "sessions: a second model's chain comes back, lag 1",
    "standalone.s3.k4.n8.v1.p16.snug.pair.stream.length": "sessions: a second model's tree comes back, lag 0",
    "nextn.deepseek.s2.v2.snug.pair.stream.length": "sessions: a layer per step comes back, token by token, lag 1",
    "nextn.deepseek.s2.v1.p64.snug.pair.stream.length": "sessions: a layer per step comes back, lag 0",
    "nextn.deepseek.s3.k4.n8.v2.p256.snug.pair.stream.length": "sessions: a tree of bundled layers comes back",
    "nextn.deepseek.s2.v2.p4.ragged.stream.length": "sglang#10846: a turn's tokens behind what a layer per step read",
    "dflash.v1.p16.snug.pair.stream.length": "sessions: blocks come back, lag 0",
    "dflash.v2.p256.snug.pair.stream.length": "sessions: blocks come back, lag 1",
    "ngram.p64.snug.pair.stream.length": "sessions: n-grams come back",
    "eagle3.qwen3.s3.k1.n4.v2.p256.nocache.c32.snug.pair.stream.length": "sessions: a windowed chain comes back, lag 1",
    "eagle3.qwen3.s3.k4.n8.v1.p256.nocache.c7.snug.pair.stream.length": "sessions: a windowed tree comes back, lag 0",
    "standalone.qwen3.s3.v2.p64.nocache.c7.snug.pair.stream.length": "sessions: a windowed turn is retracted and lost",
    "none.qwen3.v1.nocache.c32.snug.pair.stream.length": "sessions: a windowed turn is retracted token by token",
    "eagle3.s3.k1.n4.v1.p64.ctx.pair.length": "the context's end: a chain's last rounds reach past it, lag 0",
    "standalone.s5.v2.ctx.pair.length": "the context's end: a chain's last rounds reach past it, lag 1",
    "eagle3.s3.k4.n8.v1.p4.ctx.pair.length": "the context's end: a tree's last rounds reach past it, lag 0",
    "eagle3.s5.k4.n16.v2.p16.ctx.pair.length": "the context's end: a tree's last rounds reach past it, lag 1",
    "eagle3.s3.k4.n8.v2.p16.ctx.pair.stream.length": "the context's end: a turn ends there, a token more is refused",
    "eagle.tiers.v2.p64.ctx.pair.length": "the context's end: the widest round reaches past it, and depths move",
}
# Launches on which the request axes are swept pairwise: one engine start each, exams left out for their price.
SWEEPS: Final[dict[str, tuple[str, ...]]] = {
    "smoke": (),
    "pr": ("eagle3.s3.k4.n8.v2.p16",),
    "nightly": (
        "none.v2.p4.c7.m4",
        "standalone.s3.k2.n6.v1.p64.tight.m4",
        "eagle3.s5.v2.nocache.tight",
        "eagle3.s5.k2.n16.v2.c32.m4",
    ),
}
SMOKE_PRESETS: Final = (
    "eagle3.s3.k4.n8.v2.ragged",
    "standalone.pair",
    "eagle3.tiers.v2.waves.length",
    "eagle3.table.v2.waves.length",
)


def enumerate_cells() -> Iterator[Cell]:
    """Every cell that runs as asked, in the order of the axes; branches are cut as soon as a constraint applies."""
    make = partial(tuple.__new__, Cell)
    for launch, tails in launches(CONSTRAINTS):
        for tail in tails:
            yield make(launch + tail)


def cover(strength: int, kept: Iterable[Cell] = ()) -> list[Cell]:
    """Cells that, with the kept ones, hold every feasible combination of `strength` values; only the new ones.

    Deterministic. Infeasible combinations are left out; `matrix.verifier` proves that nothing else is.
    """
    return _make({axis.name: list(axis.names) for axis in AXES}, strength, list(kept))


def sweep(launch: Cell, kept: Iterable[Cell] = ()) -> list[Cell]:
    """New cells that hold, with the kept ones, every pair of request values (exams excepted) on this launch."""
    factors = {name: [launch.values[name]] for name in LAUNCH}
    factors |= {axis.name: [v for v in axis.names if v != "exam"] for axis in AXES if axis.scope == "request"}
    here = [cell for cell in kept if cell.launch_key == launch.launch_key and cell.batch != "exam"]
    return _make(factors, 2, here)


def _make(factors: dict[str, list[str]], strength: int, kept: list[Cell]) -> list[Cell]:
    # covertable is slow to import and only wanted when the lock file grows.
    from covertable.main import Controller

    presets = [cell.values for cell in kept]
    controller = Controller(factors, strength=strength, salt=SALT, presets=presets, constraints=_conditions())
    rows = dict.fromkeys(Cell(**row) for row in controller.make_async())
    return [cell for cell in rows if cell not in set(kept)]


def _conditions() -> list[dict[str, Any]]:
    """The constraints for covertable, with what follows from them for fewer axes.

    covertable judges a condition once all its axes have values; the projections let it see a dead end earlier. Those on
    the same axes are one condition, and one that forbids nothing is none: each costs a call per value that is tried.
    """
    found: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for axes in {c.axes for c in CONSTRAINTS}:
        names = [AXES[NAMES.index(name)].names for name in axes]
        banned = frozenset().union(*(c.forbidden for c in CONSTRAINTS if c.axes == axes))
        allowed = [values for values in product(*names) if values not in banned]
        for size in range(2, len(axes) + 1):
            for columns in combinations(range(len(axes)), size):
                seen = {tuple(values[column] for column in columns) for values in allowed}
                named = tuple(axes[column] for column in columns)
                found[named] = found[named] & seen if named in found else seen
    whole = {named: prod(len(AXES[NAMES.index(name)].names) for name in named) for named in found}
    return [_condition(named, found[named]) for named in sorted(found) if len(found[named]) < whole[named]]


def _condition(names: tuple[str, ...], seen: set[tuple[str, ...]]) -> dict[str, Any]:
    def holds(row: dict[str, str]) -> bool:
        return tuple(row[name] for name in names) in seen

    return {"operator": "fn", "requires": list(names), "evaluate": holds}


def negatives(constraint: Constraint, count: int) -> list[Cell]:
    """Up to `count` cells that trigger exactly this refused or rewritten constraint, spread over its combinations."""
    cells = order(
        cell
        for values in constraint.forbidden
        if explain(cell := _background(dict(zip(constraint.axes, values, strict=True)))) == (constraint,)
    )
    wanted = min(count, len(cells))
    return [cells[index * (len(cells) - 1) // max(wanted - 1, 1)] for index in range(wanted)]


def _background(values: dict[str, str]) -> Cell:
    """These values before a background in which speculation matters: a chain of EAGLE3, two requests."""
    own = {"algorithm": "eagle3", "steps": "3", "batch": "pair"}
    if "algorithm" in values:
        own = {"batch": "pair"}
    return Cell.of(own | values)


def negative_constraints() -> tuple[Constraint, ...]:
    """The refused and rewritten constraints: each needs cells of its own."""
    return tuple(constraint for constraint in CONSTRAINTS if constraint.kind in ("refused", "rewritten"))
