"""Shards of the registered tests: every file once, evenly, and the same on every host."""

import random
from pathlib import Path

import pytest

from specmatrix.ci.partition import file_shard, of_stage, partition
from specmatrix.ci.registry import Registration
from specmatrix.errors import ConfigError
from specmatrix.matrix.cover.lockfile import STAGES

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

SECONDS = [9.0, 1.0, 2.0, 6.0] * 5
FILES = [Registration(Path(f"test_{i:02}.py"), seconds, "cpu", "pr") for i, seconds in enumerate(SECONDS)]


@pytest.mark.parametrize("count", [1, 3, 4, 20])
def test_every_file_is_in_one_shard_and_the_shards_are_even(count):
    shards = partition(FILES, count)
    assert sorted(file.path for shard in shards for file in shard.files) == [file.path for file in FILES]
    # No shard can be shorter than the longest file, or than an even share (Graham 1969: 4/3 of the best at most).
    least = max(9.0, sum(file.est_seconds for file in FILES) / count)
    assert least <= max(shard.seconds for shard in shards) <= 4 / 3 * least


def test_by_hand():
    shards = partition(FILES[:4], 2)
    assert [(shard.seconds, [file.path.name for file in shard.files]) for shard in shards] == [
        (9.0, ["test_00.py"]),
        (9.0, ["test_01.py", "test_02.py", "test_03.py"]),
    ]


def test_the_order_of_the_files_does_not_matter():
    shuffled = random.Random(1).sample(FILES, len(FILES))
    assert partition(shuffled, 3) == partition(FILES, 3)
    assert file_shard(shuffled, "2/3") == partition(FILES, 3)[1]


def test_a_stage_includes_the_earlier_stages():
    files = [Registration(Path("test_it.py"), 1.0, tier, stage) for tier in ("cpu", "gpu1") for stage in STAGES]
    for last, stage in enumerate(STAGES):
        found = [(file.tier, file.stage) for file in of_stage(files, "gpu1", stage)]
        assert found == [("gpu1", each) for each in STAGES[: last + 1]]


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        *(
            (
                text,
                "shard must be NUMBER/COUNT with NUMBER from 1 to COUNT, such as 2/4 for the second of four, got "
                f"'{text}'",
            )
            for text in ("0/4", "5/4", "2", "a/b", "-1/2")
        ),
        ("1/21", "shard count must be at most 20, the number of test files, got 21"),
    ],
)
def test_a_shard_that_is_none_is_refused(which, sentence):
    with pytest.raises(ConfigError) as caught:
        file_shard(FILES, which)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("tier", "stage", "sentence"),
    [
        ("tpu", "pr", "tier 'tpu' is unknown; it must be one of cpu, gpu1, gpu2, gpu4, gpu8"),
        ("cpu", "product", "stage 'product' is unknown; it must be one of smoke, pr, nightly"),
    ],
)
def test_unknown_names_are_refused(tier, stage, sentence):
    with pytest.raises(ConfigError) as caught:
        of_stage(FILES, tier, stage)
    assert str(caught.value) == sentence
