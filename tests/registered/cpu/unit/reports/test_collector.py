import gc

import pytest

from specmatrix.reports.collector import MANY, paused

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


@pytest.fixture
def thawed():
    """Nothing is frozen; the plugin froze what pytest collected, and will find it so again."""
    gc.unfreeze()
    gc.collect()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_what_was_built_is_old_at_once():
    with paused():
        built = [[number] for number in range(MANY + 1)]
    young = {id(each) for generation in (0, 1) for each in gc.get_objects(generation=generation)}
    assert not any(id(each) in young for each in built), "the next collection of young objects would go through them"


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("number", [1, MANY + 1])
def test_what_the_caller_froze_stays_frozen(number):
    gc.freeze()
    with paused():
        assert len([[number] for number in range(number)]) == number
    assert gc.get_freeze_count()


@pytest.mark.usefixtures("thawed")
def test_little_work_counts_nothing(monkeypatch):
    monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("counting goes through all that is frozen"))
    with paused():
        assert [[number] for number in range(300)]
