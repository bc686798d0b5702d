"""Signals raise an exception that ends a command with one sentence."""

import os
import signal
from threading import Thread

import pytest

from specmatrix.stopping import SENTENCE, SIGNALS, Stopped, deferred, stoppable


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_and_its_handler_comes_back(number: int, status: int):
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as caught, stoppable():
        os.kill(os.getpid(), number)
    assert (str(caught.value), caught.value.status) == (SENTENCE, status)
    stop = caught.value.saying("two of three are done")
    assert (str(stop), stop.status) == ("two of three are done", status)
    assert signal.getsignal(number) is before


def test_a_signal_that_the_process_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stoppable():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_deferred_signal_is_handled_at_the_end():
    done = []
    with pytest.raises(Stopped) as caught, stoppable():
        handlers = [signal.getsignal(number) for number in SIGNALS]
        with deferred():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            done.append("everything")
    assert done and caught.value.number == signal.SIGTERM
    with stoppable():
        assert [signal.getsignal(number) for number in SIGNALS] == handlers


def test_no_error_handler_takes_it():
    assert not issubclass(Stopped, Exception | KeyboardInterrupt)


def test_a_second_thread_leaves_the_handlers_alone():
    seen = []

    def look() -> None:
        with stoppable(), deferred():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
