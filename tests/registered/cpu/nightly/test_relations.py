"""Relations between runs: what must not change verify rounds, and what speculation may cost in reused tokens."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from specmatrix.engine.core.memory.prefix_cache import PrefixCache
from specmatrix.engine.spec.autoregressive import AutoregressiveDrafter
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.oracles.prefix import span_of
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.prepared_cell import prepare

# Pairs of cells whose greedy requests must have equal rounds.
SAME_ROUNDS = (
    ("eagle3.s3.k4.n8.v2.mixed_lengths", "eagle3.s3.k4.n8.v1.mixed_lengths"),
    ("eagle3.s3.k4.n8.v2.mixed_lengths", "eagle3.s3.k4.n8.v2.p16.mixed_lengths"),
    ("eagle3.s3.k4.n8.v2.mixed_lengths", "eagle3.s3.k4.n8.v2.p64.nocache.c7.mixed_lengths"),
    ("standalone.s3.v2.mixed_lengths", "standalone.s3.k1.n4.v1.p4.c32.mixed_lengths"),
    ("dflash.v1.mixed_lengths", "dflash.v2.p16.c7.mixed_lengths"),
    ("nextn.deepseek.s2.v1.mixed_lengths", "nextn.deepseek.s2.v2.p4.c7.mixed_lengths"),
    ("eagle3.s3.k4.n8.v2.single", "eagle3.s3.k4.n8.v2.mixed_lengths"),
)
CACHED = (("none.v2.m4.burst", "eagle3.s5.v2.m4.burst"), ("none.v2.p4.m4.burst", "standalone.s3.v2.p4.m4.burst"))


def ran(cell: str) -> Run:
    """A cell's run on its own engine."""
    torch.set_num_threads(1)
    prepared, subject = prepare(Cell.from_id(cell.removesuffix(".single"))), ReferenceSubject()
    return run_requests(subject.start_engine(prepared.configuration), prepared.requests, subject.profile.capabilities)


once = cache(ran)


def rounds(run: Run) -> dict[str, tuple[int, ...]]:
    return {answer.name: answer.accept_lengths for answer in run.answers if not answer.retractions}


def differing(one: Run, other: Run) -> list[str]:
    """The requests of both runs whose rounds differ."""
    mine, theirs = rounds(one), rounds(other)
    common = mine.keys() & theirs.keys()
    assert common and all(sum(mine[name]) > len(mine[name]) for name in common)
    return [name for name in sorted(common) if mine[name] != theirs[name]]


def forgone(plain: Run, drafted: Run, cell: str) -> list[str]:
    """The requests that reuse fewer tokens with drafts than without, by more than the drafts' span in whole pages."""
    page = int(drafted.resolved["page_size"])
    most = -(-span_of(Cell.from_id(cell), drafted.resolved) // page) * page
    cached = {answer.name: answer.cached_tokens for answer in plain.answers}
    assert any(cached.values())
    return [a.name for a in drafted.answers if not cached[a.name] - most <= a.cached_tokens <= cached[a.name]]


@pytest.mark.nightly
@pytest.mark.parametrize(("one", "other"), SAME_ROUNDS)
def test_timing_pages_chunks_and_the_batch_leave_rounds_as_they_are(one: str, other: str):
    assert differing(once(one), once(other)) == []


@pytest.mark.nightly
@pytest.mark.parametrize(("plain", "drafted"), CACHED)
def test_drafts_cost_at_most_their_span_of_cached_tokens(plain: str, drafted: str):
    assert forgone(once(plain), once(drafted), drafted) == []


@pytest.mark.nightly
@pytest.mark.parametrize("cell", ["eagle3.s{}.v2.mixed_lengths", "standalone.s{}.v2.mixed_lengths"])
def test_deeper_drafts_emit_no_fewer_tokens_per_round(cell: str):
    lengths = []
    for steps in (1, 3, 5):
        every = [length for each in rounds(once(cell.format(steps))).values() for length in each]
        lengths.append(sum(every) / len(every))
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


def test_defects_break_the_relations(monkeypatch):
    """Drafts that depend on the chunk, and a cache that drafts keep from matching."""
    (whole, chunked), (plain, drafted) = SAME_ROUNDS[2], CACHED[0]
    extend = AutoregressiveDrafter.prime

    def once_per_chunk(drafter, batch, tokens, aux, sampled, following):
        return extend(drafter, batch, tokens, aux, sampled, following.clamp(max=-1))

    with monkeypatch.context() as planted:
        planted.setattr(AutoregressiveDrafter, "prime", once_per_chunk)
        assert differing(ran(whole), ran(chunked))
    match = PrefixCache.match
    with monkeypatch.context() as planted:
        planted.setattr(PrefixCache, "match", lambda cache, tokens: match(cache, tokens)[: -3 * cache.key_span or None])
        assert forgone(once(plain), ran(drafted), drafted)
