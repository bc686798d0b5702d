import gc

import pytest

from specmatrix.reports.collector import paused

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


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


def test_what_was_built_is_old_at_once():
    # The plugin froze what pytest collected.
    gc.unfreeze()
    gc.collect()
    with paused():
        built = [[number] for number in range(300)]
    young = {id(each) for generation in (0, 1) for each in gc.get_objects(generation=generation)}
    assert not any(id(each) in young for each in built), "the next collection of young objects would go through them"


def test_what_the_caller_froze_stays_frozen():
    gc.freeze()
    try:
        with paused():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
