"""Requests that end exactly at the last position of the context, also as turns of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from specmatrix.matrix.workloads.request import Refusal, RequestSpec


class PriorTokens(NamedTuple):
    """Numbers of tokens in a request's prompt, including its history, and in the whole text after its last token."""

    prompt: int
    whole: int


def fill_context(requests: Sequence[RequestSpec], context: int, tokens: Callable[[str], int]) -> list[RequestSpec]:
    """The same requests, with max_new_tokens raised to fill a context of `context` tokens where no turn follows.

    In a session each is preceded by an attempt with one more token, which must be refused. No request may end before
    its limit. tokens: counts a prompt's tokens, including BOS.
    """
    followed = {
        request.session.follows for request in requests if request.session is not None and request.refused is None
    }
    priors: dict[str, PriorTokens] = {}
    out: list[RequestSpec] = []
    for request in requests:
        if request.refused is None:
            prompt = _history(request, priors) + tokens(request.prompt)
            if request.name not in followed:
                request = replace(request, max_new_tokens=context - prompt)
                if request.session is not None:
                    over = _one_more(request)
                    out.append(over)
                    request = replace(request, after=(*request.after, over.name))
            priors[request.name] = PriorTokens(prompt, prompt + request.max_new_tokens)
        out.append(request)
    return out


def _history(request: RequestSpec, priors: dict[str, PriorTokens]) -> int:
    """Number of tokens before the prompt, minus the prompt's BOS token, which is dropped after a history."""
    here = request.session
    if here is None or here.follows is None:
        return 0
    before = priors[here.follows]
    history = before.prompt if here.drop_previous_output else before.whole
    return min(here.offset or history, history) - 1


def _one_more(request: RequestSpec) -> RequestSpec:
    """The same request with one token more than the context holds."""
    return replace(
        request,
        name=f"{request.name}.over",
        max_new_tokens=request.max_new_tokens + 1,
        refused=Refusal.CONTEXT,
        closes_after=None,
        logprobs=False,
        top_logprobs=0,
    )
