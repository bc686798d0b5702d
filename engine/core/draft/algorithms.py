"""The algorithms: one frozen row of traits each, and nothing else in the engine asks "which algorithm is this"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from specmatrix.errors import ConfigError

if TYPE_CHECKING:
    from specmatrix.engine.core.config.asked import EngineConfig, Facts

# Among captured states: the target's hidden state behind its final norm, which no layer's input is.
FINAL: Final = -1


class Topology(StrEnum):
    """The widest shape of draft that an algorithm can propose."""

    ROOT = "root"
    CHAIN = "chain"
    TREE = "tree"


@dataclass(frozen=True, slots=True)
class Traits:
    """Everything the engine may ask about an algorithm.

    name: as written after --speculative-algorithm, upper case.
    summary: one line for the README table and the command line.
    topology: ROOT proposes nothing, CHAIN one token per depth, TREE up to topk per node.
    own_kv: the drafter writes keys and values of its own for every committed token.
    needs_hidden: the drafter reads hidden states that the target captures.
    reads_host: the drafter reads tokens on the host, so they must have been resolved.
    max_lag: how many launched steps may wait unread (0: spec v1 only, 1: v2 too).
    key_span: tokens past a page's end that the page's draft KV depends on, unless the drafter says otherwise.
    draft_weights: "none"; "checkpoint": of the draft's own; "bundled": in the target's checkpoint unless one is named.
    draft_architectures: endings of the names in a draft's config.json that the algorithm drives; empty: any.
    adaptive: the depth of a round may change from round to round.
    block: one forward drafts a whole block, whose size the draft's checkpoint gives.
    layered: the draft may bring several layers, one for each step of a chain.
    target_verify_for_draft: the draft's forward may have the target's verify shape, a round's width of tokens per
        request, and share its graphs (sglang#24999).
    irregular: trees have the shape that the text suggests, topk children at most, and no fixed pool of candidates.
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
    layered: bool = False
    target_verify_for_draft: bool = False
    irregular: bool = False

    @property
    def drafts(self) -> bool:
        """True if a step can propose more than its root."""
        return self.topology is not Topology.ROOT

    @property
    def needs_draft_model(self) -> bool:
        """True if the drafter has weights, its own or bundled ones."""
        return self.draft_weights != "none"


NONE: Final = Traits(
    name="NONE",
    summary="plain decoding: one token per step, the baseline of every comparison",
    topology=Topology.ROOT,
)
EAGLE: Final = Traits(
    name="EAGLE",
    summary="a one-layer head over the target's last hidden state drafts, with the target's embedding and head",
    topology=Topology.TREE,
    own_kv=True,
    needs_hidden=True,
    key_span=1,
    draft_weights="checkpoint",
    draft_architectures=("ForCausalLMEagle", "EagleModel"),
    adaptive=True,
)
EAGLE3: Final = Traits(
    name="EAGLE3",
    summary="a small head over three captured hidden states of the target drafts",
    topology=Topology.TREE,
    own_kv=True,
    needs_hidden=True,
    key_span=1,
    draft_weights="checkpoint",
    draft_architectures=("ForCausalLMEagle3",),
    adaptive=True,
)
NEXTN: Final = Traits(
    name="NEXTN",
    summary="the multi-token-prediction layers that the target's checkpoint brings draft",
    topology=Topology.TREE,
    own_kv=True,
    needs_hidden=True,
    key_span=1,
    draft_weights="bundled",
    draft_architectures=("ForCausalLMNextN",),
    adaptive=True,
    layered=True,
)
STANDALONE: Final = Traits(
    name="STANDALONE",
    summary="a smaller language model with the target's tokenizer drafts",
    topology=Topology.TREE,
    own_kv=True,
    key_span=1,
    draft_weights="checkpoint",
    draft_architectures=("ForCausalLM",),
)
NGRAM: Final = Traits(
    name="NGRAM",
    summary="what followed the same last tokens before, in any prompt, output or a given corpus, is drafted",
    topology=Topology.TREE,
    reads_host=True,
    max_lag=0,
    irregular=True,
)
DFLASH: Final = Traits(
    name="DFLASH",
    summary="one forward over a block of mask tokens drafts all of it, from the target's hidden states",
    topology=Topology.CHAIN,
    own_kv=True,
    needs_hidden=True,
    draft_weights="checkpoint",
    draft_architectures=("DFlashDraftModel",),
    block=True,
    target_verify_for_draft=True,
)

ALGORITHMS: Final[tuple[Traits, ...]] = (NONE, EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM, DFLASH)

# A user's own check of what was asked; it raises ConfigError with a sentence that names the fix.
Check: TypeAlias = Callable[["EngineConfig", "Facts"], None]

_registered: dict[str, tuple[Traits, Check | None]] = {}


def known_algorithms() -> tuple[Traits, ...]:
    """The built-in rows and the registered ones, in the order of their registration."""
    return (*ALGORITHMS, *(traits for traits, _ in _registered.values()))


def is_registered(name: str) -> bool:
    """True for an algorithm that a user registered."""
    return name in _registered


def register_traits(traits: Traits, check: Check | None) -> None:
    """Add a row. ConfigError if the name is taken; see `engine.plugin` for the whole of a registration."""
    if any(known.name == traits.name for known in ALGORITHMS):
        raise ConfigError(f"algorithm {traits.name} is built in; register yours under another name")
    if traits.name in _registered:
        raise ConfigError(f"algorithm {traits.name} is registered already; forget it first or use another name")
    _registered[traits.name] = (traits, check)


def forget_traits(name: str) -> None:
    """Remove a registered row. ConfigError if there is none."""
    if name not in _registered:
        raise ConfigError(f"algorithm {name} is not registered; allowed: {', '.join(_registered) or 'none is'}")
    del _registered[name]


def own_check(name: str) -> Check | None:
    """The check that came with a registered algorithm."""
    return _registered[name][1] if name in _registered else None


def algorithm(name: str) -> Traits:
    """The traits of an algorithm by its name, in any case; ConfigError lists the names that exist."""
    for traits in known_algorithms():
        if traits.name == name.upper():
            return traits
    known = ", ".join(traits.name for traits in known_algorithms())
    raise ConfigError(f"speculative_algorithm {name!r} is unknown; it must be one of {known}")
