import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.tiers import check_seed, repro, tier, visible_gpus


def test_a_repro_line_names_the_tier_unless_it_is_the_default():
    assert repro("none.pair", "cpu", 3) == "specmatrix run --cells 'none.pair' --seed 3 --out \"$(mktemp -d)\""
    line = repro("none.pair", "gpu1", 3)
    assert line == "specmatrix run --tier gpu1 --cells 'none.pair' --seed 3 --out \"$(mktemp -d)\""


def test_a_tier_is_shown_the_gpus_of_the_machine(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert [visible_gpus(name) for name in ("cpu", "gpu1", "gpu4")] == [0, 4, 4]
    with pytest.raises(ConfigError, match=r"^tier 'gpu8' needs 8 GPUs but this machine has 4; use 'cpu'$"):
        visible_gpus("gpu8")


def test_an_unknown_tier_lists_the_tiers():
    with pytest.raises(ConfigError) as caught:
        tier("gpu3")
    assert str(caught.value) == "tier 'gpu3' is unknown; it must be one of cpu, gpu1, gpu2, gpu4, gpu8"


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_out_of_range_is_refused(seed):
    check_seed(0)
    check_seed(2**31 - 1)
    with pytest.raises(ConfigError) as caught:
        check_seed(seed)
    assert str(caught.value) == f"seed must be between 0 and 2147483647, got {seed}"
