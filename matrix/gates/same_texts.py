"""Compares rounds behind equal texts within a cell and between cells: what a round accepts follows from the models, the
draft's shape and the text, whatever the batch, pages, chunks, timing, cache, ranks or age of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, TypeAlias

from msgspec.structs import replace

from specmatrix.matrix.subjects.protocol import Answer
from specmatrix.reports.schema import CellResult, FailingRequest
from specmatrix.reports.wording import count

# The gate that has the number, and the number: the name and rounds of each request.
GATE: Final = "acceptance"
NUMBER: Final = "same_texts"
# A digest of the models, the draft's shape and the text before a round, and the round's tokens.
Round: TypeAlias = tuple[str, Sequence[int]]


def rounds_of(drafts: Iterable[object], answer: Answer) -> Iterator[Round]:
    """The rounds of an answer but the last, which may be cut; none where tokens of no round move them. drafts: the
    models and the draft's shape of each round."""
    text, start = blake2b(repr((answer.prompt_ids, answer.output_ids[:1])).encode(), digest_size=8), 1
    for drawn, length in zip(drafts, () if answer.moves else answer.accept_lengths[:-1], strict=False):
        tokens, known = answer.output_ids[start : start + length], text.copy()
        known.update(repr(drawn).encode())
        yield known.hexdigest(), tokens
        text.update(repr(tokens).encode())
        start += length


@dataclass
class SameTexts:
    """known: by digest, the different rounds so far, each with its first request."""

    known: dict[str, dict[tuple[int, ...], str]] = field(default_factory=dict)

    def apart(self, where: str, requests: Iterable[tuple[str, Iterable[Round]]]) -> list[FailingRequest]:
        """Each round that ends where no earlier one with its text does, although their tokens are equal up to the first
        end. Remembers all. where: of messages."""
        found = []
        for name, rounds in requests:
            at = 1
            for place, (text, tokens) in enumerate(rounds, 1):
                mine, seen = tuple(tokens), self.known.setdefault(text, {})
                other = next((its for its in seen if mine[: len(its)] == its[: len(mine)]), mine)
                if mine not in seen and other != mine:
                    said = f"verify round {place} of {name} has {count(len(mine), 'token')}"
                    said += f", that of {seen[other]} with the same text {len(other)}"
                    found.append(FailingRequest(GATE, name, token=at, round=place, note=said))
                seen.setdefault(mine, f"{name} in {where}")
                at += len(mine)
        return found

    def judged(self, result: CellResult, last: bool = False) -> CellResult:
        """A cell's record, with acceptance FAIL if a round is apart from earlier ones. last: nobody compares it again,
        so the number is dropped."""
        gate = result.gate(GATE)
        if gate is None or NUMBER not in gate.numbers:
            return result
        apart = self.apart(result.id, gate.numbers[NUMBER])
        if last:
            gate = replace(gate, numbers={name: value for name, value in gate.numbers.items() if name != NUMBER})
        if apart and gate.state == "PASS":
            gate = replace(gate, state="FAIL", message=f"{apart[0].note}; so {count(len(apart), 'round')} of the cell")
            result = replace(result, state="FAIL", first_red=result.first_red or apart[0])
        return replace(result, gates=tuple(gate if each.name == GATE else each for each in result.gates))
