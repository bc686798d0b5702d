import re
from dataclasses import fields, replace

import pytest

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.workloads import build
from specmatrix.matrix.workloads.finish import text_of
from specmatrix.matrix.workloads.predicted import predict, shape_of
from specmatrix.matrix.workloads.questions import prompt_ids, questions, token_id, tokenizer
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.sessions import WAVES
from specmatrix.matrix.workloads.stored_oracle import oracle_index, oracle_of
from specmatrix.matrix.zoo.tokenizer import EOS_ID
from tests.support.refusals import refusal

CELLS = [cell for cell in stage_cells("nightly") if expect(cell) != "refused"]
SIZES = {"single": 1, "pair": 2, "mixed_lengths": 5, "burst": 9, "gsm": build.EXAM_QUESTIONS, "ramp": sum(WAVES)}


def size(cell):
    """Eight streaming sessions beside four plain requests, or as many requests as the batch says."""
    return 12 if (cell.session, cell.batch) == ("streaming", "burst") else SIZES[cell.batch]


def _is_own(cell, request):
    """Whether a request is one of the batch itself."""
    extra = "bdfghmt" if cell.batch == "ramp" else "bdfghmtw"
    return request.name[0] not in extra and request.refused is None


def returning(cell, requests):
    """The prompts after a burst in tight memory that follow one another, and those that return after an exam."""
    alone = cell.session == "none" and (cell.batch == "gsm" or (cell.memory, cell.batch) == ("tight", "burst"))
    return [one for one in requests if alone and one.after]


def longest(requests):
    """Tokens of each request at its end, including its history."""
    own = {
        request.name: 1 + len(tokenizer().encode(request.prompt).ids) + request.max_new_tokens for request in requests
    }
    before = {request.name: request.session.follows if request.session else None for request in requests}

    def whole(name):
        return own[name] + (whole(before[name]) if before[name] else 0)

    return [whole(request.name) for request in requests if not request.name.startswith("d")]


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_every_workload_fits_its_cell(seed):
    for cell in CELLS:
        names = [request.name for request in build.workload(cell, seed)]
        own = [one for one in build.workload(cell, seed) if _is_own(cell, one)]
        own = own[: len(own) - len(returning(cell, own))]
        turns = {request.name for request in own if ".turn" in request.name}
        assert len(own) - len(turns) == size(cell), cell.id
        assert bool(turns) == (cell.session != "none"), cell.id
        assert len(set(names)) == len(names), cell.id
        assert sum(name.startswith("d") for name in names) == (build.DRAWS if build.draws_apply(cell) else 0), cell.id
        if cell.memory == "tight":
            assert max(longest(own)) + build.OVERRUN <= cell.memory_tokens, cell.id


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_after_a_burst_in_tight_memory_a_prompt_returns_before_a_text_that_needs_the_room_of_another(seed):
    cell = Cell.from_id("eagle3.s3.v2.p4.tight.burst")
    *_, one, two, again, last = found = build.workload(cell, seed)
    assert returning(cell, found) == [one, two, again, last] and again == replace(
        one, name=f"{one.name}.again", after=(two.name,)
    )
    cached, kept = len(prompt_ids(one)), len(prompt_ids(two))
    assert cell.memory_tokens - cached - kept < longest([last])[0] <= cell.memory_tokens - build.OVERRUN
    other = {"prefix_cache": "off"}, {"page_size": "64"}, {"abort": "queued"}, {"memory": "ample"}, {"batch": "pair"}
    assert not any(returning(here, build.workload(here, seed)) for here in (cell._replace(**one) for one in other))


@pytest.mark.parametrize(("interval", "place"), [(".i16", 32), (".i24", 48), ("", 256)])
@pytest.mark.parametrize("seed", [0, 1, 17])
def test_prompts_leave_a_cached_one_around_a_checkpoint(interval, place, seed):
    cell = Cell.from_id(f"none.qwen3next{interval}.mixed_lengths")
    first, *others = found = build.workload(cell, seed)[-4:]
    ids = [prompt_ids(one) for one in found]
    shared = [next(at for at, (a, b) in enumerate(zip(ids[0], own, strict=False)) if a != b) for own in ids[1:]]
    assert shared == [place - 1, place, place + 1] and min(map(len, ids)) > place + 1
    assert [one.after for one in others] == [(one.name,) for one in found[:-1]] and len(first.after) == 5
    other = {"prefix_cache": "off"}, {"memory": "tight"}, {"abort": "running"}, {"model": "qwen3"}
    assert not any(one.name[0] == "h" for less in other for one in build.workload(cell._replace(**less), seed))


def test_each_parameter_meets_each_drafter_in_pull_requests():
    """So one that a drafter ignores is seen where it changes the answer of plain decoding."""
    sampling = {one.name for one in fields(RequestSpec)} & {one.name for one in fields(SamplingParams)}
    asked = {name: set() for name in sampling - {"json_schema", "regex", "ebnf", "structural_tag", "reasoning_end_ids"}}
    cells = [cell for cell in stage_cells("pr") if expect(cell) != "refused"]
    plain = RequestSpec("", "", 0)
    for cell in cells:
        for request in build.workload(cell, 0):
            for name in asked:
                if getattr(request, name) != getattr(plain, name):
                    asked[name].add(cell.algorithm)
    drafters = {cell.algorithm for cell in cells}
    assert len(asked) > 15 and {name: drafters - those for name, those in asked.items() if those != drafters} == {}


def test_the_first_questions_of_an_exam_over_few_rows_return_last():
    cell = Cell.from_id("eagle3.m4.gsm.temperature")
    *found, last = build.workload(cell, 0)
    asked = {one.name: one for one in found}
    assert last.name == "q7.again" and len(returning(cell, [*found, last])) == build.LATE_REPEATS + 1
    assert last == replace(asked["q7"], name=last.name, after=tuple(asked)[: -build.LATE_REPEATS + 1], answer=None)
    assert not any(one.name.endswith("again") for one in build.workload(cell._replace(slots="auto"), 0))


@pytest.mark.parametrize("start", ["none.v2.p256.tight", "none.qwen3.nocache.p256.c32.tight", "none.p64.tight"])
@pytest.mark.parametrize("seed", [0, 1, 17])
def test_two_requests_never_fit_tight_memory_to_their_ends(start, seed):
    """Each fills more than half, so two of them need the same last page; for large pages, turns do."""
    for batch in ("pair", "mixed_lengths.stream", "burst.branch") if "p256" in start else ("pair", "burst"):
        cell = Cell.from_id(f"{start}.{batch}.length")
        first = [
            request for request in build.workload(cell, seed) if ".turn" not in request.name and request.refused is None
        ]
        assert 2 * min(longest(first)) > cell.memory_tokens, cell.id


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_over_chunks_the_first_prompts_with_rules_have_lengths_around_a_chunk_and_a_round(seed):
    cell = Cell.from_id("eagle3.s3.k4.n8.v2.p16.c32.mixed_lengths.rules.stops")
    first = build.workload(cell, seed)[:4]
    assert [(one.name, len(prompt_ids(one)), one.max_new_tokens) for one in first] == [
        *[("t0", 33, 11), ("t1", 32, 11), ("t2", 31, 11), ("t3", 8, 11)]
    ]
    assert len({prompt_ids(one)[1] for one in first}) == 4 and all(one.ruled for one in first)
    assert build.tail_lengths(cell._replace(prefill_chunk="7", draft_tokens="6")) == (8, 7, 6)
    plain = {"prefill_chunk": "off"}, {"sampling": "greedy"}, {"memory": "tight"}, {"session": "streaming"}
    assert not any(build.tail_lengths(cell._replace(**values)) for values in plain)


@pytest.mark.parametrize("seed", [0, 3])
def test_cells_of_many_questions_have_texts_up_to_the_end_of_the_context_one_after_the_other(seed):
    cell = Cell.from_id("eagle.p256.gsm.mixed")
    *others, one, two, three = build.workload(cell, seed)
    ends = [len(prompt_ids(each)) + each.max_new_tokens for each in (one, two, three)]
    assert ends == [384, 1024, 4095] and [each.temperature for each in (one, two, three)] == [0.8, 0.0, 0.0]
    assert one.after == tuple(each.name for each in others) and (two.after, three.after) == (("f0",), ("f1",))
    assert build.far_lengths(cell._replace(model="deepseek")) == (384, 1024)
    assert build.far_lengths(cell._replace(page_size="16")) == (384,)
    assert not any(build.far_lengths(cell._replace(**one)) for one in ({"prefill_chunk": "7"}, {"batch": "burst"}))
    rules = Cell.from_id("dspark.n4.vanilla.p16.nocache.mixed_lengths.rules.stops")
    far = next(each for each in build.workload(rules, seed) if each.name == "f0")
    assert far.ruled and far.repetition_penalty != 1 and len(prompt_ids(far)) == 360
    assert build.far_lengths(rules._replace(finish="eos")) == build.far_lengths(rules._replace(context="short")) == ()


CROWDED = (
    *("eagle3.confident.parallel.pair", "dflash.dflash2.pair", "dspark.reject.rnn.pair.mixed"),
    *("suffix.mixed_lengths.mixed", "suffix.s3.sync.nocache.c32.mixed_lengths.stops"),
)


@pytest.mark.parametrize("name", CROWDED)
def test_drafters_without_waves_have_a_crowd(name):
    cell = Cell.from_id(name)
    found = build.workload(cell, 0)
    crowd = [one for one in found if one.name[0] == "w"]
    others = tuple(one.name for one in found if one not in crowd)
    assert len(crowd) == 20 and {one.after for one in crowd} == {others} and {one.temperature for one in crowd} == {0}
    assert all(one.min_new_tokens <= one.max_new_tokens < 14 for one in crowd)
    less = {"context": "short"}, {"memory": "tight"}, {"session": "streaming"}
    others = Cell.from_id("eagle3.pair"), *(cell._replace(**values) for values in less)
    assert not any(one.name[0] == "w" for other in others for one in build.workload(other, 0))


@pytest.mark.parametrize("seed", range(5))
def test_in_mixed_steps_a_request_stops_while_others_are_read(seed):
    cell = Cell.from_id("eagle3.s3.v2.c7.mixing.mixed_lengths.mixed")
    first, *others = build.workload(cell, seed)
    index = next(at for at, (question, _) in enumerate(questions()) if question in first.prompt)
    text = text_of(oracle_of(cell.target).continuations[index][: build.STOPPED])
    assert first.name == "m1" and text.endswith(first.stop[0]) and first.max_new_tokens > build.STOPPED
    read = sum(len(prompt_ids(one)) for one in others if not one.after)
    assert read > 2 * build.STOPPED * int(cell.prefill_chunk)


def test_drafts_of_other_forms_are_retracted_and_a_later_turn_refuses_another():
    def retracted(name):
        return sum(one.retract_after is not None for one in build.workload(Cell.from_id(name), 0))

    assert retracted("dspark.budget.vanilla.mixed_lengths.mixed") == retracted("eagle3.s3.v2.burst") == build.RETRACTED
    assert retracted("eagle3.s3.v2.mixed_lengths.mixed") == retracted("dspark.reject.rnn.pair.mixed") == 0
    turns = {one.name: one for one in build.workload(Cell.from_id("none.stream"), 0)}
    (later,) = (one for one in turns.values() if one.name.endswith(".later"))
    assert turns[later.beside].session.follows == later.name.removesuffix(".later") and later.refused is not None


def test_where_ends_fall_inside_rounds_it_reads_no_start_value_but_the_size_of_memory():
    request = {axis.name for axis in AXES if axis.scope == "request"}
    cell = Cell.from_id("eagle3.s3.k4.n8.v2.p16.mixed_lengths.mixed.stop_token.abort_running")
    plain = Cell(**{name: value for name, value in cell.values.items() if name in request})
    assert build.workload(cell, 3) == build.workload(cell, 3) == build.workload(plain, 3)


@pytest.mark.parametrize("kind", ["stream", "branch"])
def test_turns_request_log_probabilities_in_three_ways_and_later_ones_of_mixed_sessions_have_rules(kind):
    by_session = {}
    for request in build.workload(Cell.from_id(f"none.pair.{kind}"), 0):
        if request.refused is None:
            by_session.setdefault(request.session.id, []).append((request.logprobs, request.top_logprobs))
    none, own, best = (False, 0), (True, 0), (True, 3)
    # The second streaming session is closed while its third turn runs.
    streaming = [[none, own, best, none], [own, best, none]]
    branching = [[none, own, best, none, own, best], [own, best, none, own, best, none]]
    assert list(by_session.values()) == (streaming if kind == "stream" else branching)
    mixed = [request for request in build.workload(Cell.from_id(f"none.pair.{kind}.mixed"), 0) if not request.refused]
    assert all(request.ruled is request.logprobs is True for request in mixed if request.session.follows)
    assert not any(request.ruled for request in mixed if not request.session.follows)
    assert {bool(request.bad_words_ids) for request in mixed if request.ruled} == {True, False}


def test_rules_ask_for_completions_seeds_and_scores_of_prompts():
    requests = build.workload(Cell.from_id("none.mixed_lengths.rules"), 3)
    assert [request.seed for request in requests] == [3000, 0, 3002, None, 3004]
    assert [request.prompt_logprobs for request in requests] == [0, -1, 0, -1, 9]
    assert [request.logprobs for request in requests] == [True, True, False, True, True]
    assert [(one.name, one.seed) for one in requests[1].completions()] == [("q5", 0), ("q5#1", 1)]
    lengths = {len(words) for words in requests[2].bad_words_ids}
    assert lengths == {2, 3} and requests[4].prompt == requests[0].prompt


def test_a_request_alone_has_draws_with_its_rule_and_a_stop_that_the_oracle_can_judge():
    ruled = build.workload(Cell.from_id("none.rules"), 0)
    assert ruled[0].repetition_penalty == 0.8 and {request.min_p for request in ruled[1:]} == {0.1}
    assert [request.name for request in ruled[1:]] == [f"d{n}" for n in range(200)]
    (stopped,) = build.workload(Cell.from_id("none.stops"), 0)
    assert len(stopped.stop) == 5 and not stopped.ruled and oracle_index(stopped) is not None


@pytest.mark.parametrize(
    "cell",
    [
        cell
        for cell in CELLS
        if (cell.finish, cell.batch, cell.session, cell.abort) == ("stop_string", "pair", "none", "none")
        and cell.sampling in ("greedy", "mixed")
    ],
    ids=lambda cell: cell.id,
)
def test_some_greedy_answer_of_a_pair_reaches_its_stop_string_with_every_seed(cell):
    oracle = oracle_of(cell.target)
    assert oracle is not None
    for seed in range(30):
        asked = [request for request in build.workload(cell, seed) if request.temperature == 0]
        texts = [text_of(oracle.continuations[oracle_index(one)][: one.max_new_tokens]) for one in asked]
        reached = [one.stop[0] in text for one, text in zip(asked, texts, strict=True)]
        assert any(reached), (cell.id, seed)


def test_the_seed_chooses_questions_and_randomness():
    cell = Cell.from_id("none.pair.temperature")
    one, other = build.workload(cell, 0), build.workload(cell, 1)
    assert {request.name for request in one[:2]} != {request.name for request in other[:2]}
    assert not {request.seed for request in one} & {request.seed for request in other}
    exam = [request.answer for request in build.workload(Cell.from_id("none.gsm"), 5) if request.name[0] == "q"]
    assert exam == [answer for _, answer in questions()[: build.EXAM_QUESTIONS]]


def test_repeated_prompts_reach_the_prefix_cache():
    requests = build.workload(Cell.from_id("none.burst"), 0)
    again = [request.prompt for request in requests if request.name.endswith(".again")]
    assert again == [requests[0].prompt, requests[1].prompt]


def test_each_way_of_finishing_and_aborting_is_requested():
    def asked(text, field):
        return [getattr(request, field) for request in build.workload(Cell.from_id(text), 0)]

    assert asked("none.length", "ignore_eos")[0] and asked("none.stop_string", "stop")[0] == ("\n####",)
    assert asked("none.stop_token", "stop_token_ids")[0] == (token_id("####"),)
    assert asked("none.m4.mixed_lengths.abort_queued", "abort_after") == [None] * 4 + [0]
    assert asked("none.pair.abort_running", "abort_after") == [None, 5]
    assert asked("none.mixed_lengths.mixed", "temperature") == [0.0, 0.8, 0.0, 0.8, 0.0]
    assert re.search(r"got '#### 12', which is \d tokens", refusal(token_id, "#### 12"))


@pytest.mark.parametrize("seed", [0, 7])
def test_where_requests_end_by_a_limit_or_a_stop_one_ends_inside_a_round_of_the_oracle(seed):
    """Under tight memory a stop cannot always be put off that far; a limit can always be lowered."""
    free = [cell for cell in CELLS if cell.finish == "length" or (cell.memory == "ample" and "stop_" in cell.finish)]
    known = 0
    for cell in free:
        shape = None if cell.context == "short" or cell.memory == "session_retract" else shape_of(cell)
        found = [shape and predict(cell, shape, one) for one in build.workload(cell, seed) if one.abort_after is None]
        reason = "length" if cell.finish == "length" else "stop"
        ends = [one for one in found if one and one.end.reason == reason and one.end.matched != EOS_ID]
        known += bool(ends)
        assert not ends or any(one.ends_inside for one in ends), cell.id
    assert known > 150


def test_a_cell_whose_rounds_accept_every_draft_has_a_question_where_one_is_rejected():
    cell = Cell.from_id("standalone.s2.k2.n6.ramp.length")
    shape = shape_of(cell)
    *others, last = [predict(cell, shape, request) for request in build.workload(cell, 0)]
    assert not any(one.rejects for one in others) and last.rejects and last.accepts_fully
