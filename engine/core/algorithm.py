"""The algorithms: one frozen row of traits each, and nothing else in the engine asks "which algorithm is this"."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from engine.core.errors import ConfigError


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
    key_span: tokens past a page's end that the page's draft KV depends on.
    """

    name: str
    summary: str
    topology: Topology
    own_kv: bool
    needs_hidden: bool
    reads_host: bool
    max_lag: int
    key_span: int

    @property
    def drafts(self) -> bool:
        """True if a step can propose more than its root."""
        return self.topology is not Topology.ROOT

    @property
    def needs_draft_model(self) -> bool:
        """True if a checkpoint of a draft must be given."""
        return self.own_kv


NONE: Final = Traits(
    name="NONE",
    summary="plain decoding: one token per step, the baseline of every comparison",
    topology=Topology.ROOT,
    own_kv=False,
    needs_hidden=False,
    reads_host=False,
    max_lag=1,
    key_span=0,
)
STANDALONE: Final = Traits(
    name="STANDALONE",
    summary="a smaller language model with the target's tokenizer drafts",
    topology=Topology.TREE,
    own_kv=True,
    needs_hidden=False,
    reads_host=False,
    max_lag=1,
    key_span=1,
)
EAGLE3: Final = Traits(
    name="EAGLE3",
    summary="a one-layer head over three captured hidden states of the target drafts",
    topology=Topology.TREE,
    own_kv=True,
    needs_hidden=True,
    reads_host=False,
    max_lag=1,
    key_span=1,
)

ALGORITHMS: Final[tuple[Traits, ...]] = (NONE, STANDALONE, EAGLE3)


def algorithm(name: str) -> Traits:
    """The traits of an algorithm by its name, in any case; ConfigError lists the names that exist."""
    for traits in ALGORITHMS:
        if traits.name == name.upper():
            return traits
    known = ", ".join(traits.name for traits in ALGORITHMS)
    raise ConfigError(f"speculative_algorithm {name!r} is unknown; it must be one of {known}")
