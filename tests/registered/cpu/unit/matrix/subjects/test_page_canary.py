"""Writes to cached pages are counted, whoever makes them, also where nobody reads the page again."""

import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.subjects.resource_log import PageCanary
from specmatrix.matrix.zoo.registry import resolve_path

PARAMS = SamplingParams(max_new_tokens=8, ignore_eos=True)
PROMPT = "Question: Tom has 12 apples and buys 15 more."


def served(cell: str) -> tuple[LLM, PageCanary]:
    llm = LLM(asked(Cell.from_id(cell)), resolve_path)
    canary = PageCanary(llm)
    llm.generate([PROMPT], PARAMS)
    assert canary.watched > 2 and canary.overwritten == []
    return llm, canary


@pytest.mark.parametrize("number", [0, 1])
def test_a_write_by_target_or_draft_is_seen(number):
    llm, canary = served("eagle3.s3.k1.n4.v2.p4.pair")
    pool = llm.loop.executor.kv.full.pools[number]
    page = next(iter(llm.loop.scheduler.cache.nodes))
    pool.data[-1, page * 4 + 3, 0, 0, 0] += 1
    assert canary.overwritten == canary.overwritten == [1]
    llm.flush_cache()
    assert canary.overwritten == [1], "an evicted page was compared before it went"
    pool.data[:, page * 4] = torch.nan
    assert canary.overwritten == [1], "nobody owns it any more"


def test_padding_and_pages_of_requests_may_be_written():
    llm, canary = served("none.p4.pair")
    pool, free = llm.loop.executor.kv.full.pool, llm.loop.scheduler.ledger.groups[0].free
    pool.data[:, :4], pool.data[:, free[0] * 4] = 7, 7
    assert canary.overwritten == []
    llm.generate([PROMPT, PROMPT + " How many?"], PARAMS)
    assert canary.overwritten == []


def test_an_engine_that_takes_new_memory_is_watched_on():
    llm, canary = served("none.p4.pair")
    canary.release()
    llm.release_memory_occupation()
    llm.resume_memory_occupation()
    canary.attach(llm.loop.executor)
    before = canary.watched
    llm.generate([PROMPT], PARAMS)
    page = next(iter(llm.loop.scheduler.cache.nodes))
    assert canary.watched > before
    llm.loop.executor.kv.full.pool.data[0, page * 4] += 1
    assert canary.overwritten == [2]
