"""`python -m tools.mutants [ID...]`: a sample of small random changes, or those of these ids, and what kills them.

Exit status 1 if the share of killed mutants is below its goal by more than chance.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from specmatrix.errors import ConfigError
from specmatrix.options import WORKERS
from specmatrix.reports.stats import wilson
from specmatrix.reports.store import write_text
from specmatrix.reports.wording import count
from tools.mutants.judging import ENGINE, Judge, Outcome
from tools.mutants.mutations import Mutant, equivalents, named_mutant, sample_of

MUTANTS_FILE: Final = "mutants.json"
# Ring 0 and the drafters and verifiers.
PATHS: Final = ("engine/core", "engine/spec")
# Goals for the share of mutants killed by cells, and by anything; those marked as equivalent do not count.
CELLS_GOAL: Final = 0.8
GOAL: Final = 0.95


def main(words: Sequence[str] | None = None) -> int:
    """Print what kills each mutant, survivors with their lines, and the shares."""
    parser = ArgumentParser(prog="python -m tools.mutants", description="Report what kills small random changes.")
    parser.add_argument("ids", metavar="ID", nargs="*", help="mutants, as --list names them; default: a sample")
    parser.add_argument("--paths", action="append", help=f"a file or folder; repeatable; default: {', '.join(PATHS)}")
    parser.add_argument("--sample", type=int, default=200, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the sample, and of the cells' prompts and sampling")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--out", type=Path, help="also write mutants.json here")
    asked = parser.parse_args(words)
    paths = asked.paths or [*PATHS]
    drawn, known = ([], 0) if asked.ids else sample_of(paths, asked.sample, asked.seed)
    drawn, marks = drawn or [named_mutant(name) for name in asked.ids], equivalents()
    mutants = {one.id: one for one in drawn if not any(mark.marks(one) for mark in marks)}
    if asked.list:
        print("\n".join(f"{one.id} {lines(one)}" for one in mutants.values()))
        return 0
    found: list[Outcome] = []
    for outcome in Judge(asked.seed).outcomes([*mutants.values()], asked.workers):
        found.append(outcome)
        print(sentence(outcome, mutants[outcome.id]), flush=True)
        if asked.out is not None:
            rows = msgspec.to_builtins(sorted(found, key=lambda one: one.id))
            settings = {"paths": asked.ids or paths, "seed": asked.seed, "of": known or len(drawn)}
            write_text(asked.out / MUTANTS_FILE, msgspec.json.encode(settings | {"mutants": rows}).decode() + "\n")
    number = len(drawn) - len(mutants)
    print(f"{count(len(found), 'mutant')} of {known or len(drawn):,}; {number:,} more marked as equivalent")
    return status(found)


def lines(mutant: Mutant) -> str:
    """The mutant's function, and its lines before and after."""
    return f"{mutant.within}: {' '.join(mutant.before.split())} -> {' '.join(mutant.after.split())}"


def sentence(outcome: Outcome, mutant: Mutant) -> str:
    """The outcome of a mutant in one sentence."""
    if not outcome.by:
        return f"survived: {mutant.id} {lines(mutant)}"
    return f"{mutant.id}: killed by {outcome.by}: {' in '.join(filter(None, (outcome.how, outcome.cell)))}"


def status(found: Sequence[Outcome]) -> int:
    """Print the shares of what was killed with their intervals; 1 if one is below its goal by more than chance."""
    by, below = Counter(one.by for one in found), 0
    shares = [("anything", len(found) - by[""], GOAL)]
    if all(one.id.startswith(ENGINE) for one in found):  # cells judge engine mutants only
        shares.insert(0, ("cells", by["cells"], CELLS_GOAL))
    for name, number, goal in shares if found else ():
        low, high = wilson(number, len(found))
        below |= high < goal
        share = f"{number / len(found):.0%} ({low:.0%} to {high:.0%}, 95 % interval)"
        print(f"killed by {name}: {share}; the goal is {goal:.0%}")
    return int(below)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(f"{error}")
