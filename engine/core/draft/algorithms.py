"""The algorithms: one frozen row of traits each; no other engine code branches on an algorithm's name.

Draft tree topology on the host: arithmetic shared by configuration and drafters.

A tree of N nodes uses N consecutive slots after the committed tokens. Node 0 is the root (the previous round's bonus
token); `parents[n] < n`, `parents[0] == -1`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from specmatrix.errors import ConfigError, shown

if TYPE_CHECKING:
    from specmatrix.engine.core.config.asked import EngineConfig, Facts

# Among captured states: the target's hidden state after its final norm, which is no layer's input.
FINAL: Final = -1


class Topology(StrEnum):
    """The widest shape of draft that an algorithm can propose."""

    ROOT = "root"
    CHAIN = "chain"
    TREE = "tree"


@dataclass(frozen=True, slots=True)
class Traits:
    """Everything the engine needs to know about an algorithm.

    name: the value of --speculative-algorithm, upper case.
    summary: one line for the table of `docs/engine.md` and the command line.
    topology: ROOT proposes nothing, CHAIN one token per depth, TREE up to topk per node.
    own_kv: the drafter writes its own KV for every committed token.
    needs_hidden: the drafter reads hidden states captured from the target.
    reads_host: the drafter reads tokens on the host, so they must have been resolved.
    max_lag: maximum number of launched, unread steps (0: spec v1 only, 1: v2 too).
    key_span: tokens past a page's end that the page's draft KV depends on, unless the drafter overrides it.
    draft_weights: "none"; "checkpoint": the draft's own; "bundled": in the target's checkpoint unless one is named.
    draft_architectures: supported suffixes of the architecture in a draft's config.json; empty: any.
    adaptive: the draft depth may change from round to round.
    block: one forward drafts a whole block, whose size the draft's checkpoint sets.
    parallel: one forward drafts all steps of a chain, if the draft's checkpoint names a mask token.
    layered: the draft may have several prediction layers, one for each step of a chain.
    target_verify_for_draft: the draft's forward may have the target's verify shape, a round's width of tokens per
        request, and share its graphs (sglang#24999).
    confident: the drafter knows how likely each draft of a chain is, so that unlikely ones need not be verified.
    budgets: the drafter's confidences may decide how many drafts of the whole batch are verified.
    constrains: the drafter can mask the logits that it drafts from, by a request's grammar.
    suffix_trees: drafts are counted continuations, as many as are likely, so that each row has a number of its own.
    irregular: the tree's shape depends on the text, with at most topk children and no fixed candidate pool.
    rounds: "own" if what a request's rounds accept follows from its text alone, "shared" if other requests' texts
        matter too, as in an index of all texts.
    """

    name: str
    summary: str
    topology: Topology
    own_kv: bool = False
    needs_hidden: bool = False
    reads_host: bool = False
    max_lag: int = 1
    key_span: int = 0
    draft_weights: Literal["none", "checkpoint", "bundled"] = "none"
    draft_architectures: tuple[str, ...] = ()
    adaptive: bool = False
    block: bool = False
    parallel: bool = False
    layered: bool = False
    target_verify_for_draft: bool = False
    confident: bool = False
    budgets: bool = False
    constrains: bool = False
    suffix_trees: bool = False
    irregular: bool = False
    rounds: Literal["own", "shared"] = "own"

    @property
    def drafts(self) -> bool:
        """True if a step can propose more than its root."""
        return self.topology is not Topology.ROOT

    @property
    def needs_draft_model(self) -> bool:
        """True if the drafter has weights, its own or bundled."""
        return self.draft_weights != "none"


def _traits(row: dict[str, Any]) -> Traits:
    given = {"topology": Topology(row["topology"]), "draft_architectures": tuple(row.get("draft_architectures", ()))}
    return Traits(**row | given)


# A row of `algorithms.json` has the traits that differ from the defaults.
ROWS: Final = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
ALGORITHMS: Final = tuple(map(_traits, ROWS))

# A user's own check of the requested configuration; it raises ConfigError with a message that names the fix.
Check: TypeAlias = Callable[["EngineConfig", "Facts"], None]

_registered: dict[str, tuple[Traits, Check | None]] = {}


def known_algorithms() -> tuple[Traits, ...]:
    """The built-in rows, then the registered ones in registration order."""
    return (*ALGORITHMS, *(traits for traits, _ in _registered.values()))


def is_registered(name: str) -> bool:
    """True for a user-registered algorithm."""
    return name in _registered


def register_traits(traits: Traits, check: Check | None) -> None:
    """Add a row. Raises ConfigError if the name is taken; see `engine.plugin` for the complete registration."""
    if any(known.name == traits.name for known in ALGORITHMS):
        raise ConfigError(f"algorithm {traits.name} is built in; choose another name")
    if traits.name in _registered:
        raise ConfigError(f"algorithm {traits.name} is already registered; forget it first or choose another name")
    _registered[traits.name] = (traits, check)


def forget_traits(name: str) -> None:
    """Remove a registered row. Raises ConfigError if there is none."""
    if name not in _registered:
        raise ConfigError(f"algorithm {name} is not registered; allowed: {', '.join(_registered) or 'none'}")
    del _registered[name]


def own_check(name: str) -> Check | None:
    """The configuration check of a registered algorithm."""
    return _registered[name][1] if name in _registered else None


def algorithm(name: str) -> Traits:
    """The traits of an algorithm by its case-insensitive name; ConfigError lists the known names."""
    for traits in known_algorithms():
        if traits.name == name.upper():
            return traits
    known = ", ".join(traits.name for traits in known_algorithms())
    raise ConfigError(f"speculative_algorithm {shown(name)} is unknown; it must be one of {known}")


def tree_pool(num_steps: int, topk: int) -> int:
    """Candidate nodes of a draft tree, without the root, all eligible for selection (EAGLE-2): topk at the first depth,
    topk * topk at each later one."""
    return topk + (num_steps - 1) * topk * topk


def nodes_within(room: int, topk: int, most: int) -> int:
    """Most nodes, at most `most`, of a tree that may emit `room` tokens: those of depth below `room`, root included."""
    nodes = level = 1
    for _ in range(min(room, most) - 1):
        level *= topk
        nodes += level
    return min(nodes, most)


def max_depth(num_steps: int, num_draft_tokens: int) -> int:
    """Longest path below the root: the accept matrix has this + 1 columns, not num_draft_tokens (sglang#26866)."""
    return min(num_steps, num_draft_tokens - 1)
