"""Requests that end exactly at the last position of the context, also as turns of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from specmatrix.matrix.subjects.protocol import Ask, Refusal


class PriorTokens(NamedTuple):
    """Numbers of tokens in a request's prompt, including its history, and in the whole text after its last token."""

    prompt: int
    whole: int


def to_the_brim(asks: Sequence[Ask], context: int, tokens: Callable[[str], int]) -> list[Ask]:
    """The same requests, with max_new_tokens raised to fill a context of `context` tokens where no turn follows.

    In a session each is preceded by an attempt with one more token, which must be refused. No request may end before
    its limit. tokens: counts a prompt's tokens, including BOS.
    """
    followed = {ask.session.follows for ask in asks if ask.session is not None and ask.refused is None}
    priors: dict[str, PriorTokens] = {}
    out: list[Ask] = []
    for ask in asks:
        if ask.refused is None:
            prompt = _history(ask, priors) + tokens(ask.prompt)
            if ask.name not in followed:
                ask = replace(ask, max_new_tokens=context - prompt)
                if ask.session is not None:
                    over = _one_more(ask)
                    out.append(over)
                    ask = replace(ask, after=(*ask.after, over.name))
            priors[ask.name] = PriorTokens(prompt, prompt + ask.max_new_tokens)
        out.append(ask)
    return out


def _history(ask: Ask, priors: dict[str, PriorTokens]) -> int:
    """Number of tokens before the prompt, less the prompt's BOS token, which is then dropped."""
    here = ask.session
    if here is None or here.follows is None:
        return 0
    before = priors[here.follows]
    history = before.prompt if here.drop_previous_output else before.whole
    return min(here.offset or history, history) - 1


def _one_more(ask: Ask) -> Ask:
    """The same request with one token more than the context holds."""
    return replace(
        ask,
        name=f"{ask.name}.over",
        max_new_tokens=ask.max_new_tokens + 1,
        refused=Refusal.CONTEXT,
        closes_after=None,
        logprobs=False,
        top_logprobs=0,
    )
