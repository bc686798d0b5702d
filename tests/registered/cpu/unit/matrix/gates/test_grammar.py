import re
from dataclasses import replace

import pytest

from specmatrix.engine.device.grammar_masks import RequestMatcher
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import read
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.grammar import EFFECTS, ENDED, OF_DRAFTS, REFUSED, TOGETHER, GrammarGate
from specmatrix.matrix.oracles.grammar import following, unreadable
from specmatrix.matrix.subjects.protocol import Capability
from specmatrix.matrix.workloads.boundaries import behind, due_places, is_plain, place_of
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.finish import text_of
from specmatrix.matrix.workloads.grammars import grammar_of
from specmatrix.matrix.workloads.predicted import deepest_round, shape_of
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.questions import questions, tokenizer
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_of
from specmatrix.matrix.zoo.gsm_mini import prompt_of

CELL, TAGGED = "eagle3.s3.v2.mixed_lengths.regex", "eagle3.s3.v2.mixed_lengths.mixed.tagged"
GATE = GrammarGate()


@pytest.mark.parametrize("cell", [CELL, TAGGED])
def test_constrained_answers_are_legal_and_read(measured, cell):
    found = measured(cell)
    outcome = found.judge(GATE)
    assert (outcome.state, outcome.message) == (State.PASS, "") and GATE.applies(found.prepared.cell)
    assert not GATE.applies(Cell()) and outcome.numbers["complete"] >= 2 and outcome.numbers["changed"] > 4


def test_an_illegal_token_and_an_unreadable_answer_are_named(measured, altered):
    found = measured(CELL)
    place, answer = next((i, one) for i, one in enumerate(found.run.answers) if one.name == "q5")
    comma, ids = tokenizer().encode("<", add_special_tokens=False).ids[0], answer.output_ids
    wrong = found.judge(GATE, altered(found.run, place, output_ids=(*ids[:3], comma, *ids[4:])))
    assert wrong.state is State.FAIL and (wrong.blame.request, wrong.blame.token) == ("q5", 3)
    assert f"token 3, {comma}, is illegal after" in wrong.message
    short = (*ids[:5], ids[-1])
    cut = found.judge(GATE, altered(found.run, place, output_ids=short))
    assert cut.numbers["unreadable"] == 1 and cut.numbers["illegal"] == 1
    ended = found.judge(GATE, altered(found.run, place, finish="error"))
    assert ended.message.endswith("it ended with an error, although its grammar left a token")


def test_a_matcher_that_a_drafted_end_has_ended_is_red_in_a_random_tree(measured, monkeypatch):
    monkeypatch.setattr(RequestMatcher, "pop", lambda self: self._tokens.pop() and self._fed.pop())
    outcome = measured(CELL).judge(GATE)
    said = r"the grammar of (\S+): in random tree \d behind .*, the mask of node \d allows \d+ tokens behind .*, its .*"
    found = re.fullmatch(said, outcome.message)
    assert outcome.state is State.FAIL and found is not None and outcome.blame.request == found[1], outcome.message


def test_drafts_that_follow_their_grammar_are_masked(measured):
    found = measured("standalone.s3.constrained.mixed_lengths.json")
    assert found.judge(GATE).state is State.PASS
    outcome = found.judge(GATE, replace(found.run, evidence={**found.run.evidence, "grammar.masked_drafts": 0}))
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "no mask changed a draft")


@pytest.mark.parametrize(("name", "why"), [*(EFFECTS | TOGETHER | REFUSED | ENDED).items()])
def test_masks_without_effect_are_not_measured(measured, name, why):
    found = measured(CELL)
    run = replace(found.run, evidence={**found.run.evidence, name: 0})
    outcome = found.judge(GATE, run)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, why)


@pytest.mark.parametrize("name", OF_DRAFTS)
def test_drafts_that_were_counted_are_those_of_the_rounds(measured, name):
    found = measured(CELL)
    due = found.run.evidence[name]
    run = replace(found.run, evidence={**found.run.evidence, name: due + 1})
    outcome = found.judge(GATE, run)
    asked = ", ".join(one.name for one in run.answers if one.name in {one.name for one in run.requests if one.grammar})
    text = f"{name} is {due + 1}, but by the rounds of {asked} {due}"
    assert due and (outcome.state, outcome.message) == (State.FAIL, text)
    kept = {one.name for one in run.requests if one.grammar}
    blind = [replace(one, accept_lengths=()) if one.name in kept else one for one in run.answers]
    none = replace(found.run, answers=tuple(blind), evidence={**found.run.evidence, **dict.fromkeys(OF_DRAFTS, 0)})
    assert found.judge(GATE, none).message == next(iter(OF_DRAFTS.values()))


@pytest.mark.parametrize("shown", [{Capability.TOKEN_IDS}, set()])
def test_an_engine_without_counters_is_judged_by_its_texts(measured, shown):
    found = measured(CELL)
    run = replace(found.run, capabilities=frozenset(shown), evidence={})
    outcome = found.judge(GATE, run)
    changed = sum(bool(r.grammar) and not r.reasoning_end_ids for r in run.requests)
    assert outcome.state is State.PASS and outcome.numbers["changed"] == changed
    broken = tuple(replace(one, text=f"{one.text}?", output_ids=one.output_ids[1:]) for one in run.answers)
    assert found.judge(GATE, replace(run, answers=broken)).state is State.FAIL
    known = oracle_of("llama-mini")
    free = {r.name: text_of(known.continuation(RequestSpec(r.name, r.prompt, 1))) for r in run.requests}
    unmasked = tuple(replace(one, text=free[one.name], finish="length") for one in run.answers)
    assert found.judge(GATE, replace(run, answers=unmasked)).numbers["changed"] == 0


def test_no_whole_answer_is_not_measured(measured):
    found = measured(CELL)
    running = tuple(replace(one, finish="length") for one in found.run.answers)
    outcome = found.judge(GATE, answers=running)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "no answer ended with its grammar")


def requests(value: str) -> dict[str, RequestSpec]:
    return {one.name: one for one in workload(Cell(batch="mixed_lengths", grammar=value), 0)}


READ = {
    "json": ('{"line":" Eli has keys.","left":12}', '{"line":"short","left":12}', '{"line":" Eli has keys."'),
    "regex": (" Then there are 12 keys\n#### 10", " Then there are 12 keys\n#### 12", ""),
    "ebnf": (" Now there are 12*3=<<12*3=36>>36 a.\n#### 36!", " Now there are a.\n#### 36", "!"),
    "tagged": ("12 keys!", "12 keys", " 12!"),
}


@pytest.mark.parametrize("value", READ)
def test_an_independent_parser_reads_what_the_grammar_allows_and_nothing_else(value):
    first = next(one for one in requests(value).values() if one.grammar is not None)
    good, *bad = READ[value]
    assert unreadable(first, good) == "" and all(unreadable(first, text) for text in bad)
    one, eos = replace(first, reasoning_end_ids=()), frozenset({1})
    for text, ends in ((good, True), *((text, False) for text in bad)):
        ids = tuple(tokenizer().encode(text, add_special_tokens=False).ids)
        assert bool(following(one, ids, eos)[1]) is ends, text


@pytest.mark.parametrize("cell", [f"{name}.mixed_lengths.tagged" for name in ("eagle3.s3.v2", "ngram.s3", "suffix.s3")])
def test_grammars_begin_at_every_place_of_a_round_or_the_cell_is_not_measured(measured, cell):
    found = measured(cell)
    assert found.judge(GATE).numbers["begun"] == 4
    markers = {one.name: one.reasoning_end_ids for one in found.run.requests if one.grammar}
    for place in range(4):
        answers, rounds = [], []
        for one in found.run.answers:
            first = behind(markers.get(one.name, ()), one.output_ids)
            if first and place_of(first - 1, one.accept_lengths, 4) == place:
                one = replace(one, accept_lengths=())
            answers.append(one)
            rounds += one.accept_lengths if one.name in markers else ()
        counted = dict(zip(OF_DRAFTS, (sum(rounds) - len(rounds), sum(n < 4 for n in rounds)), strict=True))
        run = replace(found.run, answers=tuple(answers), evidence={**found.run.evidence, **counted})
        outcome = found.judge(GATE, run)
        assert (outcome.state, outcome.numbers["begun"]) == (State.NOT_MEASURED, 3)
        assert outcome.message == f"no grammar began behind place {place} of a round"


def test_workloads_ask_for_a_grammar_at_every_place_and_for_one_that_ends_at_a_draft():
    """In every locked cell of drafters whose rounds the oracle knows, with several seeds."""
    for cell in (one for one in read().upto("nightly") if one.grammar != "none" and one.model != "llama_json"):
        shape, oracle = shape_of(cell), oracle_of(cell.target)
        widths = shape.num_steps, shape.topk, shape.num_draft_tokens
        if (rounds := oracle.rounds.get((cell.drafter, *widths))) is None:
            continue
        texts, deepest = {prompt_of(questions()[n][0]): n for n in range(len(rounds))}, deepest_round(*widths)
        extra = [one for one in workload(cell, len(cell.id) % 5) if one.name.startswith("b")]
        known = [(one.reasoning_end_ids, n) for one in extra for n in [texts[one.prompt]]]
        ids = oracle.continuations
        places = [place_of(behind(marker, ids[n]) - 1, rounds[n], deepest) for marker, n in known]
        assert places[1:] == due_places(cell, shape), cell
        assert place_of(len(ids[known[0][1]]) - 1, rounds[known[0][1]], deepest) < deepest - 1, cell
        pairs = [(marker, ids[n]) for marker, n in known[1:]]
        assert not any(is_plain(marker, text, behind(marker, text) - 1) for marker, text in pairs), cell


def test_a_marker_is_plain_if_its_last_token_or_its_first_beginning_finds_it():
    assert [is_plain((7, 8), text, 3) for text in ((1, 2, 7, 8), (8, 2, 7, 8), (1, 7, 7, 8), (8, 7, 7, 8))] == [
        *[True, True, True, False]
    ]


def test_in_one_cell_more_grammars_run_than_there_are_tables_for():
    """An engine keeps 16 tables, one for each grammar and marker. Two requests share one, and the first of them ends
    before another grammar comes. One more request has no legal token inside a round."""
    *crowd, late, stuck = [one for one in workload(Cell.from_id(TAGGED), 0) if one.name[0] == "g"]
    first, again, second = crowd[:3]
    assert crowd.pop(1).reasoning_end_ids == first.reasoning_end_ids and late.after == (first.name, second.name)
    assert first.max_new_tokens < second.max_new_tokens < again.max_new_tokens
    assert late.structural_tag != first.structural_tag
    assert len({one.reasoning_end_ids for one in (*crowd, late)}) - 1 == len(crowd) == 20
    assert len({(one.structural_tag, one.after) for one in crowd}) == 1 and grammar_of(*crowd[0].grammar).table
    assert stuck.stuck and len(stuck.bad_words_ids) > 10
    assert not any(one.name[0] == "g" for one in workload(Cell.from_id(TAGGED.replace(".mixed.", ".")), 0))


@pytest.mark.parametrize("algorithm", ["ngram", "suffix"])
def test_only_the_reference_engine_repeats_a_text_for_drafts_of_other_requests(algorithm):
    """Other engines may draft from a request's own text only."""
    asked = [
        [one.name[0] for one in prepare(Cell.from_id(f"{algorithm}.s3.mixed_lengths.tagged"), subject=name).requests]
        for name in ("reference", "openai")
    ]
    assert [names.count("b") for names in asked] == [6, 0] and set(asked[0]) - set(asked[1]) == {"b"}


def test_the_grammar_begins_behind_the_whole_marker():
    one = RequestSpec("q", "", 9, regex="a", reasoning_end_ids=(7, 8))
    outputs = ((), (7,), (8, 7), (7, 8), (7, 7, 8, 3))
    assert [behind((7, 8), output) for output in outputs] == [None, None, None, 2, 3] and behind((), ()) == 0
    assert [place_of(token, (3, 1, 4), 4) for token in range(10)] == [None, 0, 1, 3, 3, 0, 1, 2, 3, None]
    assert following(one, (7,), frozenset({1})).all() and following(one, (7, 8), frozenset({1})).sum() == 1
