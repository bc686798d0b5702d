"""Sends asks to a server when they are due, several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from specmatrix.matrix.subjects.protocol import Answer, SubjectRequest

# Requests at once: more than any cell runs together, and fewer than servers queue by default.
MAX_THREADS: Final = 64


def ask_all(
    asks: Sequence[SubjectRequest],
    send: Callable[[SubjectRequest], Answer],
    on_answer: Callable[[SubjectRequest, Answer], None],
) -> list[Answer]:
    """The answers in order. Each ask is sent once those that it waits for have ended; on_answer: called in this thread
    for each. ValueError if one waits for an ask that is not in `asks`."""
    waiting, running, done = list(asks), dict[Future[Answer], SubjectRequest](), dict[str, Answer]()
    with ThreadPoolExecutor(max_workers=MAX_THREADS) as pool:
        while waiting or running:
            due = [ask for ask in waiting if all(name in done for name in ask.after)]
            waiting = [ask for ask in waiting if ask not in due]
            running |= {pool.submit(send, ask): ask for ask in due}
            if not running:
                raise ValueError(f"{waiting[0].id} waits for {waiting[0].after}, which are not all among the asks")
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ask = running.pop(future)
                done[ask.id] = future.result()
                on_answer(ask, done[ask.id])
    return [done[ask.id] for ask in asks]
