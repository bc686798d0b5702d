"""Several completions of a prompt, seeds, texts that keep their stop, and log-probabilities of prompts."""

from __future__ import annotations

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import Finish, SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.errors import RequestError
from tests.support.engines import CHECKPOINTS

TEXT = "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:"
OPEN = "Question:"  # goes on in many ways
WARM = {"temperature": 1.3, "max_new_tokens": 12, "ignore_eos": True}
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 3, "speculative_num_draft_tokens": 8}


def launch(**more: object) -> LLM:
    asked = {"max_total_tokens": 512, "context_length": 256, "enable_deterministic_inference": True, **more}
    draft = str(CHECKPOINTS / "llama-mini-eagle3")
    return LLM(EngineConfig(str(CHECKPOINTS / "llama-mini"), "EAGLE3", draft, **TREE, **asked))


def test_completions_have_the_seeds_after_their_requests():
    llm = launch()
    others = SamplingParams(max_new_tokens=3)
    outs = llm.generate([OPEN, OPEN, OPEN], [SamplingParams(seed=7, n=3, **WARM), others, SamplingParams(n=2, **WARM)])
    alone = [llm.generate([OPEN], SamplingParams(seed=seed, **WARM))[0] for seed in (7, 8, 9, 0, 1)]
    found = [out.output_ids for out in outs]
    assert found == [out.output_ids for out in (*alone[:3], *llm.generate([OPEN], others), *alone[3:])]
    assert len({*found}) == 6
    last = SamplingParams(seed=2**63 - 1, n=2, **WARM)
    assert llm.generate([OPEN], last)[1].output_ids == alone[3].output_ids


def test_a_request_without_a_seed_has_the_engines_and_zero_is_a_seed():
    llm = launch(random_seed=5)
    none, zero, five = (llm.generate([OPEN], SamplingParams(seed=s, **WARM))[0].output_ids for s in (None, 0, 5))
    assert none == five != zero
    assert llm.generate([OPEN], SamplingParams(n=2, **WARM))[0].output_ids == five


@pytest.mark.parametrize("call", ["add", "stream", "session"])
def test_several_completions_are_for_generate_without_a_session(call):
    llm, params = launch(), SamplingParams(n=3)
    calls = {
        "add": lambda: llm.add(TEXT, params),
        "stream": lambda: next(llm.stream(TEXT, params)),
        "session": lambda: llm.generate([TEXT], params, SessionParams(llm.open_session(1000))),
    }
    with pytest.raises(RequestError, match=r"^n is 3; allowed: 1 for a single request or a session's turn; use gen"):
        calls[call]()


@pytest.mark.parametrize("n", [0, True, 2.5, "x"])
def test_a_bad_number_of_completions_is_named(n):
    with pytest.raises(RequestError, match=r"^n is .*; allowed: an integer in \[1, 1024\]$"):
        launch().generate([TEXT, TEXT], [SamplingParams(n=2), SamplingParams(n=n)])


def test_a_stream_keeps_the_stop_that_ended_it():
    llm = launch()
    whole = llm.generate([TEXT], SamplingParams(max_new_tokens=40))[0].text
    stop = whole[12:16]
    cut, kept = (SamplingParams(max_new_tokens=40, stop=(stop, "zz"), no_stop_trim=keep) for keep in (False, True))
    end = whole.index(stop)
    for params, text in ((cut, whole[:end]), (kept, whole[: end + len(stop)])):
        pieces = list(llm.stream(TEXT, params))
        assert "".join(pieces) == text and len(pieces) > 1
        (out,) = llm.generate([TEXT], params)
        assert (out.text, out.finish) == (text, Finish("stop", stop))


def forced(llm: LLM, prompt: list[int], start: int) -> list[dict[int, float] | None]:
    """The log-probabilities of every token at each index from start on, each from a separate request."""
    every = SamplingParams(max_new_tokens=1, top_logprobs_num=llm.vocab_size)
    outs = llm.generate([prompt[:index] for index in range(max(start, 1), len(prompt))], every)
    return [None] * (start == 0) + [dict(out.top_logprobs[0]) for out in outs]


@pytest.mark.parametrize("start", [0, 1, 17, 31])
@pytest.mark.parametrize("chunk", ["auto", 8])
def test_logprobs_of_a_prompt_are_those_of_its_prefixes(start, chunk):
    """They depend neither on chunks, cached pages and logit rules nor on other requests of the batch."""
    llm = launch(page_size=4, chunked_prefill_size=chunk)
    prompt = llm.tokenizer.encode(TEXT)
    llm.generate([prompt], SamplingParams(max_new_tokens=4))
    rules = {"temperature": 0.4, "repetition_penalty": 1.5}
    asked = SamplingParams(max_new_tokens=4, logprob_start_len=start, top_logprobs_num=3, **rules)
    out, other = llm.generate([prompt, prompt[:30]], [asked, SamplingParams(max_new_tokens=4)])
    assert other.prompt_logprobs == other.prompt_top_logprobs == other.logprobs == ()
    expected = forced(launch(), prompt, start)
    assert len(out.prompt_logprobs) == len(expected) == max(0, len(prompt) - start) and len(out.logprobs) == 4
    assert out.cached_tokens <= max(0, start - 1)
    for token, score, tops, all_of in zip(
        prompt[start:], out.prompt_logprobs, out.prompt_top_logprobs, expected, strict=True
    ):
        if all_of is None:
            assert score is None and tops == ()
            continue
        assert score == pytest.approx(all_of[token], abs=1e-4)
        assert [value for _, value in tops] == pytest.approx(sorted(all_of.values())[:-4:-1], abs=1e-4)


def test_a_retracted_request_scores_its_prompt_once():
    llm = launch(page_size=4, max_total_tokens=132, chunked_prefill_size=8, max_running_requests=3)
    asked = SamplingParams(max_new_tokens=36, ignore_eos=True, logprob_start_len=2)
    prompts = [llm.tokenizer.encode(TEXT.replace("75", number)) for number in ("34", "58", "91")]
    outs = llm.generate(prompts, asked)
    assert llm.counters["retract.done"]
    alone = launch()
    for prompt, out in zip(prompts, outs, strict=True):
        (whole,) = alone.generate([prompt], asked)
        assert out.prompt_logprobs == pytest.approx(whole.prompt_logprobs, abs=1e-4)


def test_where_a_prompts_logprobs_may_begin():
    llm = launch()
    with pytest.raises(RequestError, match=r"^logprob_start_len is 4; allowed: at most the prompt's length, 3$"):
        llm.generate([[1, 2, 3]], SamplingParams(logprob_start_len=4))
    (out,) = llm.generate([[1, 2, 3]], SamplingParams(logprob_start_len=3, max_new_tokens=2, ignore_eos=True))
    assert out.prompt_logprobs == () and len(out.logprobs) == 2
    turn = SessionParams(llm.open_session(1000))
    with pytest.raises(RequestError, match=r"^logprob_start_len is 0; allowed: -1 in a session$"):
        llm.generate([[1, 2, 3]], SamplingParams(logprob_start_len=0), turn)
