import pytest

from specmatrix.matrix.cells.tiers import check_seed, repro, tier, visible_gpus
from tests.support.refusals import refusal


def test_a_repro_line_names_the_tier_unless_it_is_the_default():
    for name, words in (("cpu", ""), ("gpu1", " --tier gpu1")):
        line = f"specmatrix run{words} --cells 'none.pair' --seed 3 --out \"$(mktemp -d)\""
        assert repro("none.pair", name, 3) == line


def test_a_tier_is_shown_the_gpus_of_the_machine_and_an_unknown_one_the_tiers(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert [visible_gpus(name) for name in ("cpu", "gpu1", "gpu4")] == [0, 4, 4]
    assert refusal(visible_gpus, "gpu8") == "tier 'gpu8' needs 8 GPUs but this machine has 4; use 'cpu'"
    assert refusal(tier, "gpu3") == "tier 'gpu3' is unknown; it must be one of cpu, gpu1, gpu2, gpu4, gpu8"


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_out_of_range_is_refused(seed):
    check_seed(0)
    check_seed(2**31 - 1)
    assert refusal(check_seed, seed) == f"seed must be between 0 and 2147483647, got {seed}"
