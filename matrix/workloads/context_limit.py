"""Requests that end at the last position of the context, whatever they continue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from specmatrix.matrix.subjects.protocol import Ask, Refusal


class PriorTokens(NamedTuple):
    """Tokens of a request's prompt, history included, and behind its last token."""

    prompt: int
    whole: int


def to_the_brim(asks: Sequence[Ask], context: int, tokens: Callable[[str], int]) -> list[Ask]:
    """The same requests; those that nobody continues say as much as fits a context of so many tokens.

    In a session one that would say a token more is tried before each of them, and must be refused. No request may end
    before its limit. tokens: counts those of a prompt, its begin token included.
    """
    followed = {ask.session.follows for ask in asks if ask.session is not None and ask.refused is None}
    told: dict[str, PriorTokens] = {}
    out: list[Ask] = []
    for ask in asks:
        if ask.refused is None:
            prompt = _history(ask, told) + tokens(ask.prompt)
            if ask.name not in followed:
                ask = replace(ask, max_new_tokens=context - prompt)
                if ask.session is not None:
                    over = _one_more(ask)
                    out.append(over)
                    ask = replace(ask, after=(*ask.after, over.name))
            told[ask.name] = PriorTokens(prompt, prompt + ask.max_new_tokens)
        out.append(ask)
    return out


def _history(ask: Ask, told: dict[str, PriorTokens]) -> int:
    """Tokens in front of the prompt, which then loses its begin token."""
    here = ask.session
    if here is None or here.follows is None:
        return 0
    before = told[here.follows]
    history = before.prompt if here.drop_previous_output else before.whole
    return min(here.offset or history, history) - 1


def _one_more(ask: Ask) -> Ask:
    """The same request past the context's end by one token."""
    return replace(
        ask,
        name=f"{ask.name}.over",
        max_new_tokens=ask.max_new_tokens + 1,
        refused=Refusal.CONTEXT,
        closes_after=None,
        logprobs=False,
        top_logprobs=0,
    )
