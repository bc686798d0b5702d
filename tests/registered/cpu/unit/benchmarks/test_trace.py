"""The share of time in which a GPU idles, from intervals."""

import pytest

from specmatrix.benchmarks import trace
from specmatrix.benchmarks.trace import idle_share


def test_the_rounds_that_fill_the_pipeline_are_left_out(monkeypatch):
    """Two events in each round; half of it is idle in the first rounds and a tenth in later ones."""
    asked = []

    def profiled(call):
        call()
        count = asked[-1]
        busy = [(20.0 * n, 20.0 * n + 10) for n in range(2 * trace.LEAD)]
        begin = 20.0 * len(busy)
        busy += [(begin + 10 * n, begin + 10 * n + 9) for n in range(2 * (count - trace.LEAD))]
        return (busy, ["cudaMemcpy", *["cudaEventSynchronize"] * count]) if count else ([], ["cudaMemcpy"])

    monkeypatch.setattr(trace, "_profiled", profiled)
    found = trace.window(asked.append)
    assert asked == [trace.LEAD + trace.ROUNDS, 0]
    assert found.idle == pytest.approx(0.1, abs=0.01)
    assert (found.blocking, found.waits) == (0, 1)


@pytest.mark.parametrize(
    ("busy", "share"), [([(6, 10), (0, 4)], 0.2), ([(0, 8), (2, 3), (9, 10)], 0.1), ([(0, 5), (4, 10)], 0.0), ([], 1.0)]
)
def test_time_that_no_interval_covers_is_idle(busy, share):
    assert idle_share(busy) == pytest.approx(share)
