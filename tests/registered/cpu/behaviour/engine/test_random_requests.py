"""1,000 seeded random requests over every algorithm: each answers token by token as it does without a drafter."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.parallel.client import RankedLLM
from specmatrix.engine.parallel.group import end_idle_group
from specmatrix.matrix.workloads.build import questions

REQUESTS = 1000
# One in so many is tried with every change.
SAMPLE = 24
AT_ONCE = 8
CONTEXT = 512
TURNS = 2
# More than a conversation has.
CHARACTERS = 10_000
# Tokens of KV: for any request alone, not for several long ones.
MEMORY = 400
VERSIONS = ("v1", "v2")
# Algorithm, target, draft and depth.
EAGLE_TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
ENGINES = {
    "eagle": ("EAGLE", "llama-mini", "llama-mini-eagle", EAGLE_TREE),
    "eagle3": ("EAGLE3", "llama-mini", "llama-mini-eagle3", EAGLE_TREE),
    "adaptive": ("EAGLE3", "llama-mini", "llama-mini-eagle3", {"speculative_adaptive": True}),
    "windows": ("EAGLE3", "qwen3-mini", "qwen3-mini-eagle3", EAGLE_TREE),
    "nextn": ("NEXTN", "deepseek-mini", None, {"speculative_num_steps": 2}),
    "standalone": ("STANDALONE", "llama-mini", "llama-mini-standalone", {"speculative_num_steps": 4}),
    "dflash": ("DFLASH", "llama-mini", "llama-mini-dflash", {}),
    "ngram": ("NGRAM", "llama-mini", None, {"speculative_num_draft_tokens": 8}),
    "eagle3, tp 2": ("EAGLE3", "llama-mini", "llama-mini-eagle3", {**EAGLE_TREE, "tp_size": 2}),
    "nextn, tp 2": ("NEXTN", "deepseek-mini", None, {"speculative_num_steps": 2, "tp_size": 2}),
}


def rules(draw: Random, longest: int) -> dict[str, object]:
    """Logit rules of two requests in five. Small ids and those of common tokens occur."""
    if draw.random() < 0.6:
        return {}
    common = [draw.randrange(300) for _ in range(12)]
    choices: dict[str, object] = {
        "min_new_tokens": draw.randrange(longest + 1),
        "min_p": draw.choice((0.02, 0.3, 1.0)),
        "presence_penalty": draw.choice((-1.0, 0.5, 2.0)),
        "frequency_penalty": draw.choice((-0.5, 0.3, 1.5)),
        "repetition_penalty": draw.choice((0.8, 1.2, 1.9)),
        "logit_bias": {token: draw.choice((-100, -3.5, 4.0)) for token in common},
        "bad_words_ids": [common[:1], common[1:3], common[3:6], [common[7], common[7]]],
        "allowed_token_ids": draw.sample(range(768), 500),
    }
    return {name: choices[name] for name in draw.sample(list(choices), draw.choice((1, 1, 2, 4)))}


def requests(seed: int) -> Iterator[tuple[str, SamplingParams]]:
    """Prompts and parameters as users send them, the rare ones included."""
    draw, rule = Random(seed), Random(-1 - seed)
    texts = [question for question, _ in questions()]
    while True:
        text = draw.choice(texts)
        begin, length = draw.randrange(len(text)), draw.choice((1, 2, 5, 30, 90, 200))
        # The zoo's drafts know how these texts go on.
        whole = f"Question: {text}\nAnswer:"
        prompt = draw.choice(
            (whole, whole, whole, text[begin : begin + length], text[:length] * 3, "é漢🙂 " * draw.randrange(1, 9))
        )
        stops = ("\n", ".", " the", "Answer", "1", "\n\n", "zzz", prompt[:3])
        longest = draw.choice((1, 2, 5, 13, 24, 40))
        yield (
            prompt,
            SamplingParams(
                max_new_tokens=longest,
                temperature=draw.choice((0.0, 0.0, 0.0, 0.3, 0.8, 1.0, 1.7, 2.0**-100, 2.0**100)),
                top_k=draw.choice((-1, -1, 1, 2, 20, 2**62)),
                top_p=draw.choice((1.0, 1.0, 0.9, 0.5, 1e-6)),
                seed=draw.choice((None, 0, 1, 2**63 - 1, draw.randrange(2**63))),
                stop=tuple(draw.sample(stops, draw.choice((0, 0, 1, 3)))),
                stop_token_ids=tuple(draw.sample(range(768), draw.choice((0, 0, 1, 40)))),
                ignore_eos=draw.random() < 0.5,
                return_logprob=draw.random() < 0.2,
                top_logprobs_num=draw.choice((0, 0, 0, 1, 5)),
                **rules(rule, longest),
            ),
        )


def answers(llm: LLM | RankedLLM, chosen: list[tuple[str, SamplingParams]], pick: Random) -> list[Output]:
    """The outputs in order, of requests that arrive while others run; some others are aborted."""
    if isinstance(llm, RankedLLM):  # they all arrive at once, and some readers leave
        for prompt, params in chosen[::10]:
            reader = llm.stream(prompt, params)
            next(reader, None)
            reader.close()
        return llm.generate(*map(list, zip(*chosen, strict=True)))
    rids: list[int] = []
    waiting = list(chosen)
    while waiting or llm.loop.busy:
        while waiting and pick.random() < 0.9:
            prompt, params = waiting.pop(0)
            rids.append(llm.add(prompt, params))
            if pick.random() < 0.1:
                llm.abort(llm.add(prompt, params))
        llm.step()
    return [llm.take(rid) for rid in rids]


def talked(llm: LLM | RankedLLM, turns: list[tuple[str, SamplingParams]]) -> list[str]:
    """The answers of a conversation, the last one read as a stream."""
    session = SessionParams(llm.open_session(CHARACTERS))
    (first, params), *_, (last, others) = turns
    (out,) = llm.generate([first], params, session)
    pieces = list(llm.stream(last, others, replace(session, rid=out.meta_info["id"])))
    llm.close_session(session.id)
    return [out.text, "".join(pieces)]


def compared(out: Output) -> tuple[object, ...]:
    # Not the ids of the top log-probabilities: a high temperature makes many equal.
    best = [[value for _, value in top] for top in out.top_logprobs]
    return out.text, out.output_ids, out.finish, out.prompt_tokens, out.logprobs, best


def started(config: EngineConfig) -> LLM | RankedLLM:
    return RankedLLM(config, Path) if config.tp_size > 1 else LLM(config)


@pytest.fixture(scope="module", autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    end_idle_group()


@pytest.mark.parametrize(
    ("name", "share"),
    [pytest.param(name, SAMPLE, id=name) for name in ("eagle3", "windows", "nextn", "ngram")]
    + [pytest.param(name, 1, id=f"{name}, every", marks=pytest.mark.nightly) for name in ENGINES],
)
def test_a_request_answers_as_without_a_drafter(name: str, share: int, zoo: Callable[[str], Path]):
    algorithm, target, draft, depth = ENGINES[name]
    number = list(ENGINES).index(name)
    chosen = list(islice(requests(number), REQUESTS // len(ENGINES) // share))
    pick = Random(number)
    # Otherwise the bits of a logit, and with them a draw between two tokens, depend on the other requests of its step.
    sizes = {"context_length": CONTEXT, "max_running_requests": AT_ONCE, "enable_deterministic_inference": True}
    path = None if draft is None else str(zoo(draft))
    sizes["tp_size"] = depth.get("tp_size", 1)
    plain = started(EngineConfig(str(zoo(target)), **sizes, disable_radix_cache=True))
    expected = [compared(plain.generate([prompt], params)[0]) for prompt, params in chosen]
    retracted = 0
    for version in VERSIONS:
        page = pick.choice((1, 4, 16))
        config = EngineConfig(str(zoo(target)), algorithm, path, spec_version=version, page_size=page, **sizes | depth,
                              max_total_tokens=MEMORY)  # fmt: skip
        llm = started(config)
        outs = answers(llm, chosen, pick)
        assert llm.health == "ok" and llm.drafter_error is None
        found = [compared(out) for out in outs]
        differing = [index for index, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
        retracted += llm.counters["retract.done"]
        assert not differing, (version, chosen[differing[0]], found[differing[0]], expected[differing[0]])
        # Otherwise the answers prove nothing about drafts.
        rounds = [length for out in outs for length in out.accept_lengths]
        assert sum(rounds) > 1.1 * len(rounds), (version, sum(rounds), len(rounds))
        # A conversation of two turns; the second turn is streamed.
        assert talked(llm, chosen[:TURNS]) == talked(plain, chosen[:TURNS]), version
    # Otherwise there was memory for all of them, as for a tenth of the requests. What sliding windows reserve admits
    # too few requests at once.
    assert retracted or share > 1 or name == "windows"
