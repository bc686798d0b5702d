"""llama.cpp's other n-gram drafters, each as a subject that runs the cells of its prompt lookup:

    specmatrix run --subject ./examples/llamacpp_lookups.py:MapK --stage product --cells ngram.n8.burst

Their answers are judged as those of `ngram-simple`, and that they draft at all. How often their drafts are accepted is
not, as nothing here knows what each of them finds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from specmatrix.matrix.subjects.limits import AxisLimit
from specmatrix.matrix.subjects.llamacpp.subject import LlamaCppSubject
from specmatrix.matrix.subjects.protocol import EngineCommand, Unsupported

if TYPE_CHECKING:
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# What `ngram-cache` drafts at most, whatever is asked; a batch must hold the drafts of all slots (docs/findings.md).
CACHED = 8
SHORT = "texts that end by a stop string of several are too short for a map to draft"


class Lookup(LlamaCppSubject):
    """A drafter in place of `ngram-simple`."""

    kind: ClassVar[str]

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """As of `ngram-simple`, with this drafter's flags."""
        found = super().translate(prepared)
        if isinstance(found, Unsupported) or found.flags["spec-type"] != "ngram-simple":
            return found
        flags = dict(found.flags)
        flags |= self._sizes(flags.pop("spec-ngram-simple-size-n"), flags.pop("spec-ngram-simple-size-m"))
        flags["spec-type"] = self.kind
        return replace(found, flags=flags)

    def _sizes(self, lookup: int, depth: int) -> dict[str, Any]:
        return {f"spec-{self.kind}-size-n": lookup, f"spec-{self.kind}-size-m": depth}


class MapK(Lookup):
    """`ngram-map-k`: what followed the same n-gram before."""

    name = "llamacpp-map-k"
    kind = "ngram-map-k"

    def limits(self) -> tuple[AxisLimit, ...]:
        """An n-gram counts once as many tokens as a draft has lie behind it."""
        return (*super().limits(), AxisLimit(SHORT, ("finish",), lambda cell: cell.finish == "stops"))


class MapK4V(MapK):
    """`ngram-map-k4v`: the one of up to four followers that came far more often than the others."""

    name = "llamacpp-map-k4v"
    kind = "ngram-map-k4v"


class Mod(Lookup):
    """`ngram-mod`: what followed the n-gram's hash in any request."""

    name = "llamacpp-mod"
    kind = "ngram-mod"

    def _sizes(self, lookup: int, depth: int) -> dict[str, Any]:
        return {"spec-ngram-mod-n-match": lookup, "spec-ngram-mod-n-min": 1, "spec-ngram-mod-n-max": depth}


class Cache(Lookup):
    """`ngram-cache`: the likeliest token behind n-grams of one to four tokens, of the texts of its slot."""

    name = "llamacpp-cache"
    kind = "ngram-cache"

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """With batches that hold what it drafts."""
        found = super().translate(prepared)
        if isinstance(found, Unsupported) or found.flags["spec-type"] != self.kind:
            return found
        room = max(found.flags["batch-size"], found.flags["parallel"] * (1 + CACHED))
        return replace(found, flags={**found.flags, "batch-size": room, "ubatch-size": room})

    def _sizes(self, lookup: int, depth: int) -> dict[str, Any]:
        return {}
