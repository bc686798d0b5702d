"""Converts the sampling parameters of HTTP requests to the engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final

from msgspec import Meta, Raw

from specmatrix.engine.api import Prompt
from specmatrix.engine.core.schedule.grammar import KINDS, MAX_CHARACTERS
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.server import limits
from specmatrix.engine.server.limits import JsonBody, absent
from specmatrix.errors import MAX_VALUE, RequestError

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Stop = Annotated[str, Meta(min_length=1, max_length=limits.STOP_CHARACTERS)]
Stops = Annotated[list[Stop], Meta(max_length=limits.STOPS)]
StopTokens = Annotated[list[TokenId], Meta(max_length=limits.STOPS)]
Bias = Annotated[dict[TokenId, float], Meta(max_length=limits.BIASES)]
BadWord = Annotated[list[TokenId], Meta(max_length=limits.BAD_WORD_TOKENS)]
BadWords = Annotated[list[BadWord], Meta(max_length=limits.BAD_WORDS)]
Grammar = Annotated[str, Meta(min_length=1, max_length=MAX_CHARACTERS)]
AllowedTokens = Annotated[list[TokenId], Meta(max_length=limits.ALLOWED_TOKENS)]
Completions = Annotated[int, Meta(ge=1, le=limits.COMPLETIONS)]
# A list of numbers is one prompt; `prompts_of` refuses a mixture.
Ids = list[TokenId | list[TokenId]]
Prompts = list[TokenId | str | list[TokenId]]
# JSON values that leave a feature unused.
EMPTY: Final = ("null", "[]", "{}", '""', "0", "false")


class Common(JsonBody):
    """Members shared by SGLang's sampling_params and OpenAI's bodies, with SGLang's defaults."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: Stop | Stops | None = None
    stop_token_ids: StopTokens | None = None
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    logit_bias: Bias | None = None
    bad_words_ids: BadWords | None = None
    allowed_token_ids: AllowedTokens | None = None
    n: Completions = 1
    json_schema: Grammar | None = None
    regex: Grammar | None = None
    ebnf: Grammar | None = None
    structural_tag: Grammar | None = None
    reasoning_end_ids: BadWord | None = None


class NativeSampling(Common):
    """SGLang's sampling_params."""

    max_new_tokens: Annotated[int, Meta(ge=0)] | None = 128
    min_new_tokens: int = 0
    sampling_seed: int | None = None
    spaces_between_special_tokens: bool = True
    stream_interval: int | None = None
    stop_regex: Raw = absent()
    custom_params: Raw = absent()


# Members that are passed to the engine unchanged.
SAME: Final = (
    *("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("ignore_eos", "no_stop_trim", "n", *KINDS),
)


def prompts_of(name: str, given: str | Sequence[Any]) -> tuple[list[Prompt], bool]:
    """The prompts in a member, and whether they are a batch. RequestError on none, too many or mixed types."""
    one = isinstance(given, str) or isinstance(next(iter(given), None), int)
    few = one or 0 < len(given) <= limits.PROMPTS
    if not few or (not isinstance(given, str) and len(set(map(type, given))) > 1):
        found = f"a list of {len(given)} values" if given else "[]"
        allowed = f"a text, token ids, or a list of at most {limits.PROMPTS} of one of these"
        raise RequestError(f"{name} is {found}; allowed: {allowed}")
    return ([given], False) if one else ([*given], True)


def refuse(asked: JsonBody) -> None:
    """Raise RequestError if an `absent` member has a non-empty value: the engine lacks these features."""
    for name in asked.__struct_fields__:
        if not isinstance(raw := getattr(asked, name), Raw):
            continue
        value = bytes(memoryview(raw)[: MAX_VALUE + 1]).decode(errors="replace")
        if "".join(value.split()) not in EMPTY:
            value = value[:MAX_VALUE] + "..." * (len(value) > MAX_VALUE)
            raise RequestError(f"{name} is {value}; allowed: null, as this engine has no such feature")
    if not getattr(asked, "skip_special_tokens", True):
        raise RequestError("skip_special_tokens is false; allowed: true")


def engine_params(
    asked: Common,
    *,
    max_new_tokens: int,
    min_new_tokens: int,
    seed: int | None,
    logprobs: bool = False,
    top_logprobs: int = 0,
    first_scored: int = -1,
    grammar: Mapping[str, str] = MappingProxyType({}),
) -> SamplingParams:
    """Convert to the engine's parameters, which the engine validates. grammar: given in another member, by its kind."""
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    same: dict[str, Any] = {name: getattr(asked, name) for name in SAME}
    if twice := next((kind for kind in KINDS if grammar and same[kind] is not None), None):
        raise RequestError(f"{twice} and response_format are given; allowed: one of them")
    return SamplingParams(
        **(same | dict(grammar)),
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop,
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        return_logprob=logprobs,
        top_logprobs_num=top_logprobs,
        min_new_tokens=min_new_tokens,
        logit_bias=asked.logit_bias or None,
        bad_words_ids=tuple(tuple(word) for word in asked.bad_words_ids or ()),
        allowed_token_ids=None if asked.allowed_token_ids is None else tuple(asked.allowed_token_ids),
        logprob_start_len=first_scored,
        reasoning_end_ids=tuple(asked.reasoning_end_ids or ()),
    )
