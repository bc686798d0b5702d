import gc
import subprocess
import sys

import pytest

from specmatrix.reports.collector import paused


def test_the_collector_rests_inside_and_runs_again_even_after_an_error():
    assert gc.isenabled()
    with pytest.raises(ValueError, match="broken"), paused():
        assert not gc.isenabled()
        raise ValueError("broken")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


# In a process of its own, as the plugin froze what pytest collected.
FROZEN = """
import gc
from specmatrix.reports.collector import MANY, paused

gc.collect()
with paused():
    built = [[number] for number in range(MANY + 1)]
young = {id(each) for generation in (0, 1) for each in gc.get_objects(generation=generation)}
assert not any(id(each) in young for each in built), "the next collection of young objects would go through them"

gc.freeze()
count = gc.get_freeze_count
for number in (1, MANY + 1):
    with paused():
        more = [[each] for each in range(number)]
    assert count() > MANY, "what the caller froze is thawed"

gc.get_freeze_count = lambda: 1 / 0
with paused():
    built = [[number] for number in range(300)]
"""


def test_built_objects_are_in_the_oldest_gc_generation_and_frozen_ones_stay_frozen():
    done = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
