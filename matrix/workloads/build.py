"""The requests of a cell: a pure function of its request values, its memory and context sizes, and a seed.

Prompts are questions of gsm-mini's test split. Request names: `q<index>` is question `index` of that file,
`q<index>.again` repeats it (a prefix cache hit), `q<index>.turn<n>` continues it in a session, `w<n>.<m>` belongs to
wave n or to line n of `neighbours.KINDS`, `t<n>` has a short prompt around the size of a chunk, `f<n>` a long one,
`h<n>` one that leaves that of `h0` around a checkpoint or passes some, behind which `h<n>.<m>` goes on, `b<n>` a
grammar that begins in its answer, `g<n>` too, all at once, `m0` is read in mixed steps, `m1` stops in one, and `d<n>`
is a sample of the distribution gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, product
from random import Random
from typing import Any, Final
from zlib import crc32

from specmatrix.matrix.cells.cell import HYBRIDS, SHORT_CONTEXT, TIGHT_TOKENS, Cell, session_retract
from specmatrix.matrix.workloads import boundaries
from specmatrix.matrix.workloads.boundaries import CROWD, fill_context, with_end_inside, within_answers
from specmatrix.matrix.workloads.grammars import constrained
from specmatrix.matrix.workloads.neighbours import alternating
from specmatrix.matrix.workloads.predicted import Prediction, predict, shape_of
from specmatrix.matrix.workloads.questions import (
    ORACLE_PROMPTS,
    count_tokens,
    questions,
    text_lengths,
    token_id,
    tokenizer,
)
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.requirements import OVERLAPS, ruled, stopped, with_chat_rules
from specmatrix.matrix.workloads.sessions import RENEWALS, TIGHT_LATER, WAVES, collisions, conversations, in_waves
from specmatrix.matrix.workloads.stored_oracle import oracle_of
from specmatrix.matrix.zoo.gsm_mini import prompt_of

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
# Of the last request of a batch in waves, if all others accept every draft.
LAST_WAVE_LIMIT: Final = 64
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
# Tokens of a text that ends with a stop string, and letters of that.
STOPPED, LETTERS = 8, 4
# The zoo's models have 4,096 positions, and no text may end at the last one where the context is the model's.
FAR: Final = (384, 1024, 4095)
FAR_LIMIT: Final = 24
LATE_REPEATS: Final = 8
PASSING: Final = range(4, 12)  # questions that pass checkpoints beside one another
HIT_LIMIT: Final = 9
LONGEST_CHUNK: Final = 32
MAX_RETURNING_PAGE: Final = 16  # a prompt has several such pages
# Of a burst that memory has room for, and of five requests with drafts of another form, so many are retracted, whatever
# their age.
RETRACTED: Final = 3
MAX_RETRACT: Final = 30
ABORT_AFTER: Final = 5
ABORT_LATE: Final = 80
DRAWS: Final = 200
# Of a lossy rule, whose bound allows what it states.
LOSSY_DRAWS: Final = 1_000
DRAWN_TOKENS: Final = 3
# The models are also trained on questions, whose starts have the widest distributions of next tokens. No question has
# this word, so that what a draft expects after it is far from what the target does, by a total variation of 0.1 to 1: a
# wrong or lossy rule of acceptance moves the output by a share of that.
DRAW_PROMPT: Final = "Question: foo"
SAMPLING: Final[dict[str, dict[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "topk_topp": {"temperature": 1.0, "top_k": 12, "top_p": 0.9},
}
RULED_DRAWS: Final[dict[str, Any]] = {"temperature": 1.0, "min_p": 0.1}


def workload(cell: Cell, seed: int, draws: int = DRAWS) -> tuple[RequestSpec, ...]:
    """The requests of a cell. `seed` selects the questions and the requests' sampling seeds. draws: samples for the
    gate `distribution`, if the cell has any.

    Every request fits into tight memory alone, but no two of them to their end.
    """
    requests = _requests(cell.as_like, seed, draws)
    for own in cell.own_values.values():
        requests = requests if own.requests is None else [*own.requests(tuple(requests))]
    return tuple(fill_context(requests, SHORT_CONTEXT, count_tokens) if cell.context == "short" else requests)


def _requests(cell: Cell, seed: int, draws: int) -> Sequence[RequestSpec]:
    """The requests with the model's own context length."""
    if cell.batch == "ramp":
        waves = in_waves(WAVES, lambda wave, place: _in_wave(cell, wave, place, seed))
        last = replace(waves[-1], max_new_tokens=LAST_WAVE_LIMIT)
        return _revealing(cell, waves, lambda _, index: replace(last, prompt=prompt_of(questions()[index][0])))
    limits = LIMITS[cell.batch]
    if cell.batch == "burst" and cell.session == "streaming":
        limits = (*limits, *FLEET)
    chosen = _chosen(cell, len(limits), seed)
    requests = [_ask(cell, name, index, place, seed, limits[place]) for place, (name, index) in enumerate(chosen)]
    if cell.abort == "queued":
        requests[-1] = replace(requests[-1], abort_after=0)
    elif cell.abort == "running":
        place = min(1, len(requests) - 1)
        late = replace(requests[place], abort_after=ABORT_LATE, ignore_eos=True)
        requests[place] = late if aborted_late(cell) else replace(requests[place], abort_after=ABORT_AFTER)
    requests = _revealing(cell, requests, lambda at, i: _ask(cell, f"q{i}", i, at, seed, limits[at]))
    own = cell.batch == "mixed_lengths" and cell.drafting != "stepwise"
    if (cell.memory, cell.session, cell.abort) == ("ample", "none", "none") and (cell.batch == "burst" or own):
        choice = Random(seed)
        for place in choice.sample(range(len(requests)), RETRACTED):
            requests[place] = replace(requests[place], retract_after=choice.randrange(2, MAX_RETRACT))
    if cell.memory == "session_retract":
        sizes = session_retract(cell.model == "qwen3", int(cell.page_size))
        requests = collisions(requests, sizes, count_tokens, cell.abort == "running")
    elif cell.session != "none":
        memory = cell.memory_tokens if cell.memory == "tight" else None
        requests = conversations(requests, cell.session == "streaming", memory, _short(cell), cell.abort == "running")
    else:
        # The first requests, so that no other one takes a part of their chunks.
        requests = [*_stopping(cell, seed), *_tails(cell, seed), *requests, *_draws(cell, seed, draws)]
        before = tuple(request.name for request in requests)
        requests += [*_far(cell, seed, before), *_returning(cell, seed, before), *_leaving(cell, seed, before)]
        requests += [*_resuming(cell, before), *_crowd(cell, seed, before)]
        if (cell.batch, cell.slots) == ("gsm", "4"):  # hundreds of rounds, and evictions, after their first run
            before = tuple(request.name for request in requests)
            again = requests[:LATE_REPEATS]
            requests += [replace(one, name=f"{one.name}.again", after=before, answer=None) for one in again]
    if cell.grammar != "none" and (shape := shape_of(cell)) is not None:
        before = tuple(request.name for request in requests)
        requests = [*requests, *within_answers(cell, shape, _short_prompts(cell, len(limits)), before)]
    requests += _beside(cell, seed)
    requests = with_chat_rules(requests) if cell.sampling == "mixed" else requests
    return [*requests, *_alternating(cell, seed, tuple(request.name for request in requests))]


def _revealing(cell: Cell, requests: list[RequestSpec], ask: Callable[[int, int], RequestSpec]) -> list[RequestSpec]:
    """The requests, changed where the oracle has neither an end inside a verify round nor a round that accepts every
    draft and one that does not; its texts are those of a session's first turns too. ask: the request of a place with
    another question."""
    if cell.algorithm == "none" or cell.batch == "gsm" or (shape := shape_of(cell)) is None:
        return requests
    lives = cell.session != "none" and len(requests) == 1  # of a single session another turn is aborted

    def guess(request: RequestSpec) -> Prediction | None:
        return predict(cell, shape, request) if lives or request.abort_after is None else None

    used = [request.prompt for request in requests]
    kept = [at for at, request in enumerate(requests) if lives or request.abort_after is None]
    places = [at for at in reversed(kept) if used.count(requests[at].prompt) == 1]
    if cell.batch == "ramp":
        places, used = [len(requests) - 1], []
    fresh = [at for at in _short_prompts(cell, len(requests)) if prompt_of(questions()[at][0]) not in used]
    others = (
        (place, with_end_inside([ask(place, index)], cell, guess)[0])
        for place, index in sorted(product(places, fresh), key=lambda one: text_lengths(one[1])[1], reverse=True)
    )
    return boundaries.with_both_rounds(with_end_inside(requests, cell, guess), guess, others)


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
    plain = plain and cell.grammar == "none"
    ruled = cell.sampling == "rules" and cell.batch == "single"
    return plain and cell.batch != "ramp" and (ruled or cell.sampling in ("temperature", "topk_topp"))


def _short_prompts(cell: Cell, count: int) -> list[int]:
    """Indices of the oracle's questions, under tight memory of those with the shortest prompts."""
    pool = list(range(ORACLE_PROMPTS))
    if cell.memory == "ample":
        return pool
    return sorted(pool, key=lambda i: text_lengths(i)[0])[: max(TIGHT_POOL, count + 1)]


def _chosen(cell: Cell, count: int, seed: int) -> list[tuple[str, int]]:
    """Name and question index of each request."""
    if cell.batch == "gsm":
        return [(f"q{index}", index) for index in range(count)]
    pool = _short_prompts(cell, count)
    if cell.memory != "ample":
        pool = sorted(pool, key=lambda i: -text_lengths(i)[1])[: count + 1]
    else:
        pool = [i for i in pool if text_lengths(i)[0] <= MAX_PROMPT and text_lengths(i)[1] <= MAX_ANSWER]
    repeats = 0 if count < 5 else count // 4
    fresh = [pool[(seed * 5 + place) % len(pool)] for place in range(count - repeats)]
    if (cell.memory, cell.batch, cell.finish) == ("tight", "pair", "stop_string"):
        # The first request has the higher limit, so that an answer reaches its stop string with every seed.
        fresh.sort(key=lambda i: text_lengths(i)[1] > LIMITS["pair"][0])
    return [(f"q{i}", i) for i in fresh] + [(f"q{i}.again", i) for i in fresh[:repeats]]


def _in_wave(cell: Cell, wave: int, place: int, seed: int) -> RequestSpec:
    index, most = (seed * 5 + 7 * wave + place) % ORACLE_PROMPTS, 9 + place % 5
    asked = _ask(cell, f"q{index}", index, place, seed, 0)
    least = min(most, asked.min_new_tokens)
    name, renewal = f"w{wave}.{place}", RENEWALS.get(wave, "")
    return replace(asked, name=name, max_new_tokens=most, min_new_tokens=least, renewal=renewal)


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
        room = cell.memory_tokens - OVERRUN - text_lengths(index)[0] - 1
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
    if cell.grammar != "none":
        # Blocks hardly ever guess the JSON of a model that never learnt it.
        blind = (cell.algorithm, cell.grammar) == ("dflash", "json")
        request = constrained(request, "answer" if cell.model == "llama_json" else cell.grammar, place, blind)
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
    chunk, shape = int(cell.prefill_chunk), shape_of(cell)
    widths = () if shape is None else (max(2, shape.num_draft_tokens),)
    return tuple(dict.fromkeys((chunk + 1, chunk, chunk - 1, *widths)))


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


def _beside(cell: Cell, seed: int) -> list[RequestSpec]:
    """In cells with mixed steps a last prompt, another one in each cell, so that no cache has it: the other requests go
    on while it is read."""
    ids, _ = _openings()[(crc32(cell.id.encode()) + seed) % len(_openings())]
    request = RequestSpec("m0", tokenizer().decode(ids), TAIL_LIMIT, seed=1000 * seed + 700, ignore_eos=True)
    return [request] if cell.mixed_chunk == "on" else []


def _stopping(cell: Cell, seed: int) -> list[RequestSpec]:
    """In cells with mixed steps a first request, which has its stop string while the other prompts are read."""
    oracle, index = oracle_of(cell.target), (5 * seed + EXAM_QUESTIONS // 2) % ORACLE_PROMPTS
    if cell.mixed_chunk == "off" or oracle is None:
        return []
    stop = tokenizer().decode(oracle.continuations[index][:STOPPED])[-LETTERS:]
    return [RequestSpec("m1", prompt_of(questions()[index][0]), TAIL_LIMIT, stop=(stop,), seed=1000 * seed + 701)]


def _alternating(cell: Cell, seed: int, after: tuple[str, ...]) -> list[RequestSpec]:
    """Requests of different kinds beside and behind one another, in cells of rules and stops without chunks, and with
    turns of sessions in those of chats that end at a stop token."""
    kind = (cell.session, cell.sampling, cell.finish, cell.prefill_chunk)
    plain = (cell.memory, cell.context, cell.abort, cell.grammar) == ("ample", "model", "none", "none")
    chats = plain and (cell.batch, *kind) == ("mixed_lengths", "streaming", "mixed", "stop_token", "off")
    if not chats and kind != ("none", "rules", "stops", "off"):
        return []

    def ask(line: int, place: int, limit: int) -> RequestSpec:
        index = (seed * 5 + 5 * line + place) % ORACLE_PROMPTS
        seeded = 1000 * seed + 600 + 5 * line + place
        prompt = prompt_of(questions()[index][0])
        return RequestSpec(f"w{line}.{place}", prompt, limit, seed=seeded, ignore_eos=True, loose=True)

    return alternating(ask, after, chats)


def _returning(cell: Cell, seed: int, after: tuple[str, ...]) -> list[RequestSpec]:
    """Alone after a burst in tight memory: two prompts, the first again, and a long text, for which the pages of the
    second must be evicted before those of the first."""
    kind = (cell.memory, cell.batch, cell.prefix_cache, cell.abort, cell.grammar)
    if kind != ("tight", "burst", "on", "none", "none") or int(cell.page_size) > MAX_RETURNING_PAGE:
        return []
    one, two, long = [at for at in _short_prompts(cell, len(LIMITS["burst"])) if f"q{at}" not in after][:3]
    requests = list[RequestSpec]()
    for name, index in ((f"q{one}", one), (f"q{two}", two), (f"q{one}.again", one), (f"q{long}", long)):
        request = replace(_ask(cell, name, index, 0, seed, cell.memory_tokens), after=after)
        short = index != long
        requests.append(replace(request, max_new_tokens=2) if short else replace(request, ignore_eos=True, stop=()))
        after = (name,)
    return requests


def _leaving(cell: Cell, seed: int, after: tuple[str, ...]) -> list[RequestSpec]:
    """Where states have checkpoints, one after the other: a prompt, and three that have its tokens up to the one before
    a checkpoint, up to that and up to the one after, and then another: the second one, or the first of the default
    interval. The baseline has no cache, so each answer behind a checkpoint is compared with one from the start."""
    kind, shape = (cell.memory, cell.abort, cell.session, cell.grammar, cell.mixed_chunk), shape_of(cell)
    ample = kind == ("ample", "none", "none", "none", "off")
    if cell.model not in HYBRIDS or not ample or cell.prefix_cache == "off" or shape is None:
        return []
    requests = list[RequestSpec]()
    checkpoint = shape.state_interval * (1 if cell.state_interval == "auto" else 2)
    for place, prompt in enumerate(_leaves(checkpoint, seed)):
        requests.append(RequestSpec(f"h{place}", prompt, HIT_LIMIT, ignore_eos=True, after=after))
        after = (f"h{place}",)
    return requests


def _resuming(cell: Cell, after: tuple[str, ...]) -> list[RequestSpec]:
    """Where rounds pass checkpoints, some questions at once, and then, one after the other, the texts of every other
    one up to behind each checkpoint of its answer, from which it goes on."""
    kind, shape = (cell.memory, cell.session, cell.prefix_cache), shape_of(cell)
    oracle, passed = oracle_of(cell.target), cell.model in HYBRIDS and cell.state_interval != "auto"
    if not passed or cell.algorithm == "none" or kind != ("ample", "none", "on") or shape is None or oracle is None:
        return []
    encode, interval = tokenizer().encode, shape.state_interval
    asked, resumed = list[RequestSpec](), list[RequestSpec]()
    for index in PASSING:
        prompt = encode(prompt_of(questions()[index][0]), add_special_tokens=False).ids
        ids = [*prompt, *oracle.continuations[index]]
        asked.append(RequestSpec(f"h{index}", prompt_of(questions()[index][0]), len(ids) - len(prompt), after=after))
        for edge in range(-(-len(prompt) // interval) * interval, len(ids), interval):
            texts = ((ids[:cut], tokenizer().decode(ids[:cut])) for cut in range(edge + 1, len(ids)))
            same = (text for own, text in texts if encode(text, add_special_tokens=False).ids == own)
            resumed += [RequestSpec(f"h{index}.{edge}", text, 2, ignore_eos=True) for text in islice(same, index % 2)]
    before = tuple(request.name for request in asked)
    names = [before, *((request.name,) for request in resumed)]
    return [*asked, *(replace(one, after=last) for one, last in zip(resumed, names, strict=False))]


def _crowd(cell: Cell, seed: int, after: tuple[str, ...]) -> list[RequestSpec]:
    """More short requests at once than any batch but waves has, for drafters that no wave asks for: of drafts of their
    own form, in a cell of two requests each, and of suffix trees, which forget outputs meanwhile."""
    own = cell.batch == "pair" and cell.drafting != "stepwise"
    kind = (cell.memory, cell.slots, cell.context) == ("ample", "auto", "model")
    kind = kind and cell.verify in ("whole", "confident") and cell.sampling in ("greedy", "mixed")
    if not kind or not (own or cell.algorithm == "suffix"):
        return []
    return [replace(_in_wave(cell, 0, place, seed), after=after, temperature=0.0) for place in range(CROWD)]


@cache
def _leaves(checkpoint: int, seed: int) -> list[str]:
    """The text of questions, and three texts that leave it `checkpoint` - 1, + 0 and + 1 tokens in, BOS included."""
    encode = tokenizer().encode
    rows = questions()[ORACLE_PROMPTS:]
    many = 1 + 2 * checkpoint // MAX_PROMPT
    for at in range(len(rows)):
        text = " ".join(rows[(5 * seed + at + more) % len(rows)][0] for more in range(many))
        ids, found = encode(text, add_special_tokens=False).ids, [text]
        for shared in range(checkpoint - 2, min(checkpoint + 1, len(ids) - 1)):
            text = f"{tokenizer().decode(ids[:shared])} and how many"
            got = encode(text, add_special_tokens=False).ids
            found += [text] * (got[:shared] == ids[:shared] and got[shared] != ids[shared])
        if len(found) == 4:
            return found
    raise AssertionError(f"no question may be left around token {checkpoint}")


def far_lengths(cell: Cell) -> tuple[int, ...]:
    """Numbers of tokens of long texts after their last token, so that drafts, rules and draws far behind any worked
    answer are judged: in cells of many questions over more than the smallest chunks, with the largest pages up to the
    model's end, and in cells of rules and stops without chunks and cache."""
    plain = (cell.memory, cell.abort, cell.session, cell.context) == ("ample", "none", "none", "model")
    rules = (cell.batch, cell.sampling, cell.finish, cell.prefill_chunk, cell.prefix_cache)
    ruled = rules == ("mixed_lengths", "rules", "stops", "off", "off")
    if not plain or cell.prefill_chunk == "7" or not (ruled or cell.batch == "gsm"):
        return ()
    if cell.page_size != "256":
        return FAR[:1]
    return FAR[:2] if cell.model == "deepseek" else FAR  # latent attention takes a minute for 4,096 tokens


def _far(cell: Cell, seed: int, after: tuple[str, ...]) -> list[RequestSpec]:
    """Requests of `far_lengths`, each alone after those named, as a step is as wide as its longest text. Their prompts
    are worked questions, the first of them cut. Among greedy and sampled ones the first is sampled."""
    requests, rows, index = [], questions()[EXAM_QUESTIONS:], 5 * seed
    for place, length in enumerate(far_lengths(cell)):
        prompt = prompt_of(rows[index % len(rows)][0])
        while (wanted := length - FAR_LIMIT - count_tokens(prompt)) > 0:
            index += 1
            question, answer = rows[index % len(rows)]
            ids = tokenizer().encode(f"{prompt_of(question)} {answer}\n", add_special_tokens=False).ids
            prompt = tokenizer().decode(ids[-wanted:]) + prompt
        how = SAMPLING.get("temperature" if cell.sampling == "mixed" and not place else cell.sampling, {})
        request = RequestSpec(f"f{place}", prompt, FAR_LIMIT, **how, seed=1000 * seed + place, ignore_eos=True)
        request = ruled(request, 0, ()) if cell.sampling == "rules" else request
        requests.append(replace(request, after=after))
        after = (request.name,)
    return requests


def _draws(cell: Cell, seed: int, count: int) -> list[RequestSpec]:
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
        for n in range(count)
    ]
