"""One server for all tests that only send requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served import RunningServer, served


@pytest.fixture(scope="package")
def server() -> Iterator[RunningServer]:
    """EAGLE3 over llama-mini; every page is home after the last test."""
    with served() as one:
        yield one
    ledger = one.llm.loop.scheduler.ledger
    assert not ledger.counts.held
