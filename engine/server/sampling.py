"""Sampling parameters as HTTP clients write them, and the engine's."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.errors import RequestError, shown

Number = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(min_length=1)]
Stop = Text | list[Text]
Bias = dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Number]
MAX_COMPLETIONS: Final = 128


class JsonBody(BaseModel):
    """A JSON object without unknown members, whose values have exactly the types of the description."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Common(JsonBody):
    """What SGLang's sampling_params and OpenAI's bodies share, with SGLang's defaults."""

    temperature: Number = 1.0
    top_p: Number = 1.0
    top_k: int = -1
    min_p: Number = 0.0
    frequency_penalty: Number = 0.0
    presence_penalty: Number = 0.0
    repetition_penalty: Number = 1.0
    stop: Stop | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    logit_bias: Bias | None = None
    bad_words_ids: list[list[TokenId]] | None = None
    allowed_token_ids: list[TokenId] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_COMPLETIONS)] = 1


# Members that this engine has no counterpart of, with the only value that asks for nothing.
NATIVE_ABSENT: Final = ("json_schema", "regex", "ebnf", "structural_tag", "stop_regex", "custom_params")


class NativeSampling(Common):
    """SGLang's sampling_params."""

    max_new_tokens: Annotated[int, Field(ge=0)] | None = 128
    min_new_tokens: int = 0
    sampling_seed: int | None = None
    spaces_between_special_tokens: bool = True
    stream_interval: int | None = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None
    stop_regex: Any = None
    custom_params: Any = None


# Members that the engine takes as they are.
SAME: Final = (
    *("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("ignore_eos", "no_stop_trim", "n"),
)


def refuse(asked: BaseModel, absent: tuple[str, ...]) -> None:
    """RequestError if a member asks for what the engine lacks; an empty value asks for nothing."""
    for name in absent:
        if value := getattr(asked, name):
            raise RequestError(f"{name} is {shown(value)}; allowed: null, as this engine has no such feature")
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
) -> SamplingParams:
    """The engine's parameters, which it checks itself."""
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    same: dict[str, Any] = {name: getattr(asked, name) for name in SAME}
    return SamplingParams(
        **same,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop,
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        return_logprob=logprobs,
        top_logprobs_num=top_logprobs,
        min_new_tokens=min_new_tokens,
        logit_bias=None if not asked.logit_bias else {int(token): bias for token, bias in asked.logit_bias.items()},
        bad_words_ids=tuple(tuple(word) for word in asked.bad_words_ids or ()),
        allowed_token_ids=None if asked.allowed_token_ids is None else tuple(asked.allowed_token_ids),
        logprob_start_len=first_scored,
    )
