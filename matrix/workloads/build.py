"""The requests of a cell: a pure function of its request values, its memory and context sizes, and a seed.

Prompts are questions of gsm-mini's test split. Request names: `q<index>` is question `index` of that file,
`q<index>.again` repeats it (a prefix cache hit), `q<index>.turn<n>` continues it in a session, `w<n>.<m>` belongs to
wave n, `t<n>` has a short prompt around the size of a chunk, `f<n>` a long one, and `d<n>` is a sample of the
distribution gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import tokenizers

from specmatrix import HOME
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import SHORT_CONTEXT, TIGHT_TOKENS, Cell
from specmatrix.matrix.cells.model_facts import zoo_facts
from specmatrix.matrix.cells.start_settings import session_retract
from specmatrix.matrix.workloads.context_limit import fill_context
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.requirements import OVERLAPS, ruled, stopped, with_chat_rules
from specmatrix.matrix.workloads.retraction import collisions
from specmatrix.matrix.workloads.sessions import RENEWALS, TIGHT_LATER, WAVES, conversations, in_waves
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from specmatrix.matrix.zoo.questions import read_questions
from specmatrix.matrix.zoo.tokenizer import BOS_ID

DATA: Final = HOME / "matrix" / "zoo" / "data"
# The first questions of the test split, for which the oracle holds continuations.
ORACLE_PROMPTS: Final = 32
EXAM_QUESTIONS: Final = 48
# The max_new_tokens of each request, by batch.
LIMITS: Final[dict[str, tuple[int, ...]]] = {
    "single": (96,),
    "pair": (96, 88),
    "mixed_lengths": (96, 64, 88, 72, 80),
    "burst": (96, 64, 88, 72, 80, 96, 64, 88, 72),
    "gsm": (256,) * EXAM_QUESTIONS,
}
# Limits of the requests added to a burst to make eight streaming sessions and four plain requests.
FLEET: Final = (80, 96, 64)
LENGTH_LIMITS: Final = (37, 53, 61, 45, 75)
TIGHT_LENGTH_LIMITS: Final = (91, 87, 83, 79, 95)
# Two rounds of the widest tree may write past a request's last token.
OVERRUN: Final = 2 * 16
# Under tight memory, the longest answers among this many shortest prompts: with long prompts, two requests and their
# rounds would never fit into three pages of 64 tokens.
TIGHT_POOL: Final = 12
# Otherwise at least the first request must end by itself within its limit.
MAX_PROMPT: Final = 64
MAX_ANSWER: Final = 84
STOP_STRINGS: Final = ("\n####", ">>")
STOP_TOKENS: Final = ("####", ">>")
TAIL_LIMIT: Final = 11
# The zoo's models have 4,096 positions, and no text may end at the last one where the context is the model's.
FAR: Final = (384, 1024, 4095)
FAR_LIMIT: Final = 24
LONGEST_CHUNK: Final = 32
ABORT_AFTER: Final = 5
ABORT_LATE: Final = 80
DRAWS: Final = 200
DRAWN_TOKENS: Final = 3
# The models are also trained on questions; the start of one has the widest distribution of next tokens.
DRAW_PROMPT: Final = "Question:"
SAMPLING: Final[dict[str, dict[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "topk_topp": {"temperature": 1.0, "top_k": 12, "top_p": 0.9},
}
RULED_DRAWS: Final[dict[str, Any]] = {"temperature": 1.0, "min_p": 0.1}


@cache
def questions() -> tuple[tuple[str, str], ...]:
    """(question, worked answer) pairs of the test split, in file order. DataError if the file is missing or damaged."""
    return tuple((row.question, row.answer) for row in read_questions(DATA / "test.jsonl"))


@cache
def tokenizer() -> tokenizers.Tokenizer:
    """The zoo's tokenizer, without a checkpoint."""
    return tokenizers.Tokenizer.from_file(str(DATA / "tokenizer.json"))


def prompt_ids(request: RequestSpec) -> tuple[int, ...]:
    """The tokens of a request's prompt, BOS included, as every zoo model reads it."""
    return (BOS_ID, *map(int, tokenizer().encode(request.prompt, add_special_tokens=False).ids))


def token_id(text: str) -> int:
    """The id of the single token that encodes `text`. ConfigError if it takes several tokens."""
    ids = tokenizer().encode(text, add_special_tokens=False).ids
    if len(ids) != 1:
        raise ConfigError(f"a stop token must be a single token, got {text!r}, which is {len(ids)} tokens")
    return int(ids[0])


@cache
def _lengths(index: int) -> tuple[int, int]:
    """Numbers of tokens in a question's prompt, including BOS, and in its answer."""
    question, answer = questions()[index]
    return 1 + _tokens(prompt_of(question)), _tokens(" " + answer)


def _tokens(text: str) -> int:
    return len(tokenizer().encode(text).ids)


def workload(cell: Cell, seed: int) -> tuple[RequestSpec, ...]:
    """The requests of a cell. `seed` selects the questions and the requests' sampling seeds.

    Every request fits into tight memory alone, but no two of them to their end.
    """
    requests = _requests(cell.as_like, seed)
    for own in cell.own_values.values():
        requests = requests if own.requests is None else [*own.requests(tuple(requests))]
    return tuple(fill_context(requests, SHORT_CONTEXT, _tokens) if cell.context == "short" else requests)


def _requests(cell: Cell, seed: int) -> Sequence[RequestSpec]:
    """The requests with the model's own context length."""
    if cell.batch == "ramp":
        return in_waves(WAVES, lambda wave, place: _in_wave(cell, wave, place, seed))
    limits = LIMITS[cell.batch]
    if cell.batch == "burst" and cell.session == "streaming":
        limits = (*limits, *FLEET)
    requests = []
    for place, (name, index) in enumerate(_chosen(cell, len(limits), seed)):
        requests.append(_ask(cell, name, index, place, seed, limits[place]))
    if cell.abort == "queued":
        requests[-1] = replace(requests[-1], abort_after=0)
    elif cell.abort == "running":
        place = min(1, len(requests) - 1)
        late = replace(requests[place], abort_after=ABORT_LATE, ignore_eos=True)
        requests[place] = late if aborted_late(cell) else replace(requests[place], abort_after=ABORT_AFTER)
    if cell.memory == "session_retract":
        sizes = session_retract(cell.model == "qwen3", int(cell.page_size))
        requests = collisions(requests, sizes, _tokens, cell.abort == "running")
    elif cell.session != "none":
        memory = cell.memory_tokens if cell.memory == "tight" else None
        requests = conversations(requests, cell.session == "streaming", memory, _short(cell), cell.abort == "running")
    else:
        # The first requests, so that no other one takes a part of their chunks.
        requests = [*_tails(cell, seed), *requests, *_draws(cell, seed)]
        requests += _far(cell, seed, tuple(request.name for request in requests))
    return with_chat_rules(requests) if cell.sampling == "mixed" else requests


def aborted_late(cell: Cell) -> bool:
    """Whether a request is aborted late, after both requests have grown so much that one was retracted."""
    pressed = (cell.memory, cell.batch, cell.abort, cell.session) == ("tight", "pair", "running", "none")
    return pressed and cell.finish in ("eos", "length") and cell.memory_tokens == TIGHT_TOKENS


def _short(cell: Cell) -> bool:
    """Whether a whole conversation must fit into the memory of a single request."""
    return cell.memory == "tight" and cell.session != "none" and cell.memory_tokens == TIGHT_TOKENS


def draws_apply(cell: Cell) -> bool:
    """Whether the workload includes the samples of the distribution gate."""
    plain = (cell.memory, cell.abort, cell.finish, cell.session) == ("ample", "none", "eos", "none")
    ruled = cell.sampling == "rules" and cell.batch == "single"
    return plain and cell.batch != "ramp" and (ruled or cell.sampling in ("temperature", "topk_topp"))


def _chosen(cell: Cell, count: int, seed: int) -> list[tuple[str, int]]:
    """Name and question index of each request."""
    if cell.batch == "gsm":
        return [(f"q{index}", index) for index in range(count)]
    pool = list(range(ORACLE_PROMPTS))
    if cell.memory != "ample":
        short = sorted(pool, key=lambda i: _lengths(i)[0])[: max(TIGHT_POOL, count + 1)]
        pool = sorted(short, key=lambda i: -_lengths(i)[1])[: count + 1]
    else:
        pool = [i for i in pool if _lengths(i)[0] <= MAX_PROMPT and _lengths(i)[1] <= MAX_ANSWER]
    repeats = 0 if count < 5 else count // 4
    fresh = [pool[(seed * 5 + place) % len(pool)] for place in range(count - repeats)]
    if (cell.memory, cell.batch, cell.finish) == ("tight", "pair", "stop_string"):
        # The first request has the higher limit, so that an answer reaches its stop string with every seed.
        fresh.sort(key=lambda i: _lengths(i)[1] > LIMITS["pair"][0])
    return [(f"q{i}", i) for i in fresh] + [(f"q{i}.again", i) for i in fresh[:repeats]]


def _in_wave(cell: Cell, wave: int, place: int, seed: int) -> RequestSpec:
    index = (seed * 5 + 7 * wave + place) % ORACLE_PROMPTS
    return replace(
        _ask(cell, f"q{index}", index, place, seed, 0),
        name=f"w{wave}.{place}",
        max_new_tokens=9 + place % 5,
        renewal=RENEWALS.get(wave, ""),
    )


def _ask(cell: Cell, name: str, index: int, place: int, seed: int, limit: int) -> RequestSpec:
    question, answer = questions()[index]
    tight = cell.memory == "tight"
    if cell.finish == "length":
        lengths = TIGHT_LENGTH_LIMITS if tight else LENGTH_LIMITS
        # Each request fills more than half of a larger tight memory too.
        more = (cell.memory_tokens - TIGHT_TOKENS) // 2 if tight else 0
        limit = lengths[place % len(lengths)] + more
    if tight:
        # Odd, so that the limit is no multiple of the page size or of a round.
        room = cell.memory_tokens - OVERRUN - _lengths(index)[0] - 1
        limit = min(limit, room - TIGHT_LATER if _short(cell) else room)
    mixed = "temperature" if place % 2 else "greedy"
    # Under tight memory a request must live long enough to cause retraction, unless the other is aborted early.
    stop = int(cell.abort != "none" and cell.batch == "pair") if tight else place % 2
    how = SAMPLING[mixed if cell.sampling in ("mixed", "rules") else cell.sampling]
    request = RequestSpec(
        name=name,
        prompt=prompt_of(question),
        max_new_tokens=limit,
        **how,
        seed=1000 * seed + place,
        stop=(STOP_STRINGS[stop],) if cell.finish == "stop_string" else (),
        stop_token_ids=(token_id(STOP_TOKENS[stop]),) if cell.finish == "stop_token" else (),
        ignore_eos=cell.finish == "length",
        answer=answer if cell.batch == "gsm" else None,
    )
    if cell.finish == "stops":
        # Of all ways, a request alone has one whose text the oracle has.
        way = OVERLAPS if cell.batch == "single" else place
        request = stopped(request, way, STOP_STRINGS[place % 2], token_id(STOP_TOKENS[place % 2]))
    if cell.sampling == "rules":
        request = ruled(request, place, tokenizer().encode(" " + answer, add_special_tokens=False).ids)
    return request


def tail_lengths(cell: Cell) -> tuple[int, ...]:
    """Numbers of prompt tokens, BOS included, at which the last chunk of a prompt changes: one more than a chunk,
    which leaves a tail of a single token, a chunk, one less, and a verify round's width. Empty in other cells than
    those of logit rules over chunks, whose requests show log-probabilities."""
    plain = (cell.memory, cell.abort, cell.session, cell.context) == ("ample", "none", "none", "model")
    if not plain or cell.prefill_chunk == "off" or cell.sampling != "rules" or cell.batch != "mixed_lengths":
        return ()
    chunk, resolved = int(cell.prefill_chunk), resolve(cell.config(), zoo_facts(cell))
    return tuple(dict.fromkeys((chunk + 1, chunk, chunk - 1, max(2, resolved.num_draft_tokens))))


@cache
def _openings() -> tuple[tuple[list[int], str], ...]:
    """Token ids of questions behind the oracle's and their answers, longer than any chunk and each with another first
    word, so that no two share a page of several tokens."""
    found: dict[str, tuple[list[int], str]] = {}
    for question, answer in questions()[ORACLE_PROMPTS:]:
        ids = tokenizer().encode(question, add_special_tokens=False).ids
        if len(ids) > LONGEST_CHUNK:
            found.setdefault(question.split(" ", 1)[0], (ids, answer))
    return (*found.values(),)


def _tails(cell: Cell, seed: int) -> list[RequestSpec]:
    """Requests of `tail_lengths`."""
    requests = []
    for place, length in enumerate(tail_lengths(cell)):
        ids, answer = _openings()[(seed * 5 + place) % len(_openings())]
        request = RequestSpec(f"t{place}", tokenizer().decode(ids[: length - 1]), TAIL_LIMIT, ignore_eos=True)
        request = replace(request, seed=1000 * seed + 500 + place)
        requests.append(ruled(request, place, tokenizer().encode(" " + answer, add_special_tokens=False).ids))
    return requests


def far_lengths(cell: Cell) -> tuple[int, ...]:
    """Numbers of tokens of long texts after their last token, so that drafts far behind any worked answer are judged:
    in cells of many questions over more than the smallest chunks, and with the largest pages up to the model's end."""
    if (cell.batch, cell.memory, cell.abort, cell.session) != ("gsm", "ample", "none", "none"):
        return ()
    if cell.prefill_chunk == "7":
        return ()
    if cell.page_size != "256":
        return FAR[:1]
    return FAR[:2] if cell.model == "deepseek" else FAR  # latent attention takes a minute for 4,096 tokens


def _far(cell: Cell, seed: int, after: tuple[str, ...]) -> list[RequestSpec]:
    """Requests of `far_lengths`, each alone after those named, as a step is as wide as its longest text. Their prompts
    are worked questions, the first of them cut."""
    requests, rows, index = [], questions()[EXAM_QUESTIONS:], 5 * seed
    for place, length in enumerate(far_lengths(cell)):
        prompt = prompt_of(rows[index % len(rows)][0])
        while (wanted := length - FAR_LIMIT - _tokens(prompt)) > 0:
            index += 1
            question, answer = rows[index % len(rows)]
            ids = tokenizer().encode(f"{prompt_of(question)} {answer}\n", add_special_tokens=False).ids
            prompt = tokenizer().decode(ids[-wanted:]) + prompt
        how = {"temperature": 0.0} if cell.sampling == "mixed" else SAMPLING[cell.sampling]
        request = RequestSpec(f"f{place}", prompt, FAR_LIMIT, **how, seed=1000 * seed + place, ignore_eos=True)
        requests.append(replace(request, after=after))
        after = (request.name,)
    return requests


def _draws(cell: Cell, seed: int) -> list[RequestSpec]:
    if not draws_apply(cell):
        return []
    how = SAMPLING.get(cell.sampling, RULED_DRAWS)
    return [
        RequestSpec(
            name=f"d{n}",
            prompt=DRAW_PROMPT,
            max_new_tokens=DRAWN_TOKENS,
            **how,
            seed=1_000_000 * (seed + 1) + n,
            ignore_eos=True,
            top_logprobs=tokenizer().get_vocab_size(),
        )
        for n in range(DRAWS)
    ]
