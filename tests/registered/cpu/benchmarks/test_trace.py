"""The share of time in which a GPU idles, from intervals."""

import pytest

from benchmarks.trace import idle_share

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")


@pytest.mark.parametrize(
    ("busy", "share"),
    [
        ([(0, 10)], 0.0),
        ([(0, 4), (6, 10)], 0.2),
        ([(6, 10), (0, 4)], 0.2),
        ([(0, 8), (2, 3), (9, 10)], 0.1),
        ([(0, 5), (4, 10)], 0.0),
        ([], 1.0),
    ],
)
def test_time_that_no_interval_covers_is_idle(busy, share):
    assert idle_share(busy) == pytest.approx(share)
