"""Several completions of a prompt, seeds, texts that keep their stop, and log-probabilities of prompts."""

from __future__ import annotations

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
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


def test_where_a_prompts_logprobs_may_begin():
    llm = launch()
    with pytest.raises(RequestError, match=r"^logprob_start_len is 4; allowed: at most the prompt's length, 3$"):
        llm.generate([[1, 2, 3]], SamplingParams(logprob_start_len=4))
    (out,) = llm.generate([[1, 2, 3]], SamplingParams(logprob_start_len=3, max_new_tokens=2, ignore_eos=True))
    assert out.prompt_logprobs == () and len(out.logprobs) == 2
    turn = SessionParams(llm.open_session(1000))
    with pytest.raises(RequestError, match=r"^logprob_start_len is 0; allowed: -1 in a session$"):
        llm.generate([[1, 2, 3]], SamplingParams(logprob_start_len=0), turn)
