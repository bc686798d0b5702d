"""Structured output: grammars are exact at every node, at both lags, beside everything else a request asks for."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import jsonschema
import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.device.grammar_masks import RequestMatcher
from specmatrix.errors import EngineError
from tests.support.engines import engine
from tests.support.failing_steps import MOMENTS, at_rest, drain, plant, start_engine
from tests.support.grammars import decoded

TEXT = "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:"
OTHER = "Question: A garden is 19 feet long and 5 feet wide. What is its area?\nAnswer:"
LEFT = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA = {"type": "object", "properties": {"left": LEFT}, "required": ["left"]}
LINES = r"( [A-Z][^\n]*\n){1,2}#### [0-9]{3}"
EBNF = 'root ::= sentence+ "#### " [0-9]+\nsentence ::= " " [A-Z] [a-z ]+ [0-9+=<>*-]+ [^\\n]* "\\n"'
TAG = json.dumps(
    {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": " The", "content": {"type": "regex", "pattern": " [a-z]{3,5}"}, "end": "!"},
    }
)
REST = r"(####)? [0-9]{2}[a-c]"
BLANKS = tuple((token,) for token in (199, 200, 222))  # JSON allows any number of tabs, newlines and spaces
GRAMMARS = {
    "regex": {"regex": LINES},
    "ebnf": {"ebnf": EBNF},
    "json_schema": {"json_schema": json.dumps(SCHEMA), "bad_words_ids": BLANKS},
    "structural_tag": {"structural_tag": TAG},
}
WARM = {"temperature": 0.9, "seed": 11}
# Lags, chains and trees, and drafters that propose nothing, one token, or repeat.
ENGINES = [
    ("NONE", 1, {}),
    ("EAGLE3", 1, {"spec_version": "v1"}),
    ("EAGLE3", 1, {"spec_version": "v2"}),
    ("EAGLE3", 3, {"spec_version": "v2"}),
    ("NGRAM", 3, {}),
]


@pytest.fixture(scope="module")
def plain() -> LLM:
    return engine("NONE", 1, enable_deterministic_inference=True)


@pytest.fixture(scope="module")
def truth(plain):
    """The outputs of plain decoding by grammar and sampling, each token under a fresh matcher."""
    found = {}
    for name, given in GRAMMARS.items():
        for warm in (False, True):
            params = SamplingParams(max_new_tokens=40, **given, **(WARM if warm else {}))
            found[name, warm] = params, decoded(plain, plain.tokenizer.encode(TEXT), params)
    return found


@pytest.mark.parametrize(("algorithm", "topk", "more"), ENGINES)
def test_tokens_are_those_of_plain_decoding_under_a_fresh_matcher(truth, algorithm, topk, more):
    """Constrained and free requests share every round."""
    llm = engine(algorithm, topk, enable_deterministic_inference=True, max_running_requests=9, **more)
    asked = [params for params, _ in truth.values()]
    outs = llm.generate([TEXT] * (len(asked) + 1), [*asked, SamplingParams(max_new_tokens=40)])
    assert [list(out.output_ids) for out in outs[:-1]] == [tokens for _, tokens in truth.values()]
    assert outs[-1].text.endswith("#### 64")  # the free request
    counts = llm.counters
    assert counts["grammar.mixed"] and counts["grammar.changed"] > 20
    if algorithm != "NONE":
        assert counts["grammar.forbade"] and counts["grammar.accepted"] and counts["grammar.rejected"]


def test_answers_match_their_grammars(truth, plain):
    texts = {key: plain.tokenizer.decode(tokens) for key, (_, tokens) in truth.items()}
    for warm in (False, True):
        assert re.fullmatch(LINES, texts["regex", warm])
        assert re.fullmatch(r" The [a-z]{3,5}!", texts["structural_tag", warm])
    jsonschema.validate(json.loads(texts["json_schema", True]), SCHEMA)
    assert len({*texts.values()}) > 5


def test_a_grammar_that_ends_at_a_draft_ends_the_request_even_if_eos_is_ignored():
    llm = engine("EAGLE3", 1, spec_version="v2")
    params = SamplingParams(max_new_tokens=60, ignore_eos=True, regex=r" [^\n]*\.\n#### [0-9]+")
    outs = llm.generate([TEXT, OTHER], params)
    assert {(out.finish.reason, out.finish.matched) for out in outs} == {("stop", *llm.tokenizer.eos_ids)}
    assert llm.counters["grammar.ended_inside"]
    longer = llm.generate([TEXT], replace(params, regex=None))[0]
    assert longer.finish.reason == "length"


@pytest.mark.parametrize(
    "rule",
    [{"bad_words_ids": ((1,),)}, {"min_new_tokens": 20}, {"allowed_token_ids": (5, 6)}],
    ids=["bad_words_ids", "min_new_tokens", "allowed_token_ids"],
)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_request_without_a_legal_token_ends_with_the_reason(version, rule):
    """The other requests of its rounds go on, and its tokens until then are exact."""
    llm = engine("EAGLE3", 1, spec_version=version)
    grammar = SamplingParams(max_new_tokens=30, regex=" The answer")
    expected, free = llm.generate([TEXT, TEXT], [grammar, SamplingParams(max_new_tokens=30)])
    out, other = llm.generate([TEXT, TEXT], [replace(grammar, **rule), SamplingParams(max_new_tokens=30)])
    assert out.finish.reason == "error"
    shown = len(out.output_ids)
    message = rf"no token is legal after {shown} tokens of output: .*; the tokens so far are exact"
    assert re.fullmatch(message, out.finish.message)
    assert out.output_ids == expected.output_ids[:shown] and (shown or "allowed_token_ids" in rule)
    assert other == replace(free, meta_info=other.meta_info, cached_tokens=other.cached_tokens)
    assert llm.counters["grammar.stuck"] == 1
    with pytest.raises(EngineError, match="no token is legal after"):
        list(llm.stream(TEXT, replace(grammar, **rule)))


def test_a_request_whose_masks_are_slow_ends_alone(monkeypatch):
    """A grammar with a table needs no masks of the host."""
    llm = engine("EAGLE3", 1)
    nested = SamplingParams(max_new_tokens=20, ebnf='root ::= " " group\ngroup ::= "(" group ")" | [a-z ]+')
    asked = [nested, SamplingParams(max_new_tokens=20, regex=r" The [a-z ]+\.")]
    expected = llm.generate([TEXT] * 3, [*asked, SamplingParams(max_new_tokens=20)])
    monkeypatch.setattr("specmatrix.engine.device.grammar_masks.MASK_SECONDS", -1.0)
    slow, *others = llm.generate([TEXT] * 3, [*asked, SamplingParams(max_new_tokens=20)])
    assert expected[0].finish.reason != "error" and (slow.finish.reason, slow.output_ids) == ("error", ())
    assert "or is so ambiguous that its masks take too long" in slow.finish.message
    assert [one.output_ids for one in others] == [one.output_ids for one in expected[1:]]


def test_masks_of_a_tree_end_where_they_are_slow(monkeypatch):
    """Not behind its last node."""
    llm, drafts, real = engine("EAGLE3", 4, speculative_num_draft_tokens=8), list[int](), RequestMatcher.fill
    nested = SamplingParams(max_new_tokens=20, ebnf='root ::= "(" root ")" | [^(]+')

    def noted(matcher, masks, row):
        if row:
            drafts.append(row)
            monkeypatch.setattr("specmatrix.engine.device.grammar_masks.MASK_SECONDS", -1.0)
        real(matcher, masks, row)

    monkeypatch.setattr(RequestMatcher, "fill", noted)
    (out,) = llm.generate([TEXT], nested)
    assert out.finish.reason == "error" and len(drafts) == 1


@pytest.mark.parametrize(
    "grammar", [{"regex": "[a-z ]+!"}, {"ebnf": 'root ::= "(" root ")" | [a-z ]+ "!"'}], ids=["table", "host"]
)
def test_a_free_request_on_the_row_of_a_constrained_one_stays_free(grammar):
    """Also beside requests with grammars, whose rounds have masks."""
    llm = engine("EAGLE3", 1)
    free, bound = SamplingParams(max_new_tokens=12), SamplingParams(max_new_tokens=12, **grammar)
    (expected,) = llm.generate([TEXT], free)
    llm.generate([TEXT] * 4, bound)
    found, *_ = llm.generate([TEXT] * 4, [free, bound, bound, bound])
    assert found.output_ids == expected.output_ids


def test_min_p_is_relative_to_the_best_token_that_the_grammar_allows(plain):
    """Else it could remove every legal token."""
    params = SamplingParams(max_new_tokens=12, min_p=0.9, temperature=1.0, seed=3, regex=" Zoe[a-z ]*")
    assert list(plain.generate([TEXT], params)[0].output_ids) == decoded(plain, plain.tokenizer.encode(TEXT), params)


def test_penalties_see_the_tokens_of_a_constrained_output(plain):
    params = SamplingParams(max_new_tokens=20, frequency_penalty=1.5, regex="( [a-z]+)+", ignore_eos=True)
    expected = decoded(plain, plain.tokenizer.encode(TEXT), replace(params, frequency_penalty=0.0))
    found = plain.generate([TEXT, TEXT], [params, replace(params, frequency_penalty=0.0)])
    assert [*found[1].output_ids] == expected != [*found[0].output_ids]
    assert engine("EAGLE3", 3).generate([TEXT], params)[0].output_ids == found[0].output_ids


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_retracted_request_starts_its_matcher_from_its_own_output(version):
    params = [SamplingParams(max_new_tokens=40, regex=f"( [a-z{i}]+)+", ignore_eos=True) for i in range(4)]
    shape = {"spec_version": version, "enable_deterministic_inference": True}
    whole = [out.output_ids for out in engine("EAGLE3", 1, **shape).generate([TEXT] * 4, params)]
    tight = engine("EAGLE3", 1, max_total_tokens=176, disable_radix_cache=True, **shape)
    outs = tight.generate([TEXT] * 4, params)
    assert [out.output_ids for out in outs] == whole and any(out.retractions for out in outs)


def test_a_sessions_turn_begins_a_grammar_anew():
    llm = engine("EAGLE3", 1, enable_streaming_session=True, spec_version="v2")
    params = SamplingParams(max_new_tokens=30, regex=" The [a-z]+")
    session = llm.open_session(10_000, streaming=True)
    texts = [llm.generate([text], params, SessionParams(session))[0].text for text in (TEXT, OTHER)]
    assert all(re.fullmatch(" The [a-z]+", text) for text in texts) and llm.counters["session.inherited"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_turn_that_replaces_a_running_one_begins_its_own_grammar(version):
    llm = engine("EAGLE3", 1, spec_version=version, max_running_requests=1)
    session = llm.open_session(10_000)
    first = llm.add(TEXT, SamplingParams(max_new_tokens=30, regex=" [A-Z][a-z]+"), SessionParams(session))
    drain(llm)
    replaced = llm.add(OTHER, SamplingParams(max_new_tokens=60, regex="[0-9 ]+"), SessionParams(session, first))
    for _ in range(4):
        llm.step()
    anew = SamplingParams(max_new_tokens=30, regex=" The [a-z]+")
    turn = llm.generate([OTHER], anew, SessionParams(session, first, replace=True))[0]
    assert re.fullmatch(" The [a-z]+", turn.text) and llm.take(replaced).finish.reason == "abort"


@pytest.mark.parametrize(("place", "version"), [each for each in MOMENTS if each[0] != "graph capture"])
def test_a_step_that_is_run_again_masks_as_it_did(monkeypatch, place, version):
    params = [SamplingParams(max_new_tokens=24, **given) for given in (*GRAMMARS.values(), {})]
    whole = [out.output_ids for out in start_engine(version).generate([TEXT] * 5, params)]
    llm = start_engine(version)
    rids = [llm.add(TEXT, one) for one in params]
    tokens = 0 if place == "admission of rows" else 6
    failed = plant(monkeypatch, llm, place, RuntimeError("once"), victim=rids[0], times=1, tokens=tokens)
    drain(llm)
    assert [llm.take(rid).output_ids for rid in rids] == whole and failed
    at_rest(llm)


def test_a_stop_token_ends_a_request_before_its_grammar_does():
    llm = engine("EAGLE3", 1, spec_version="v2", enable_deterministic_inference=True)
    params = SamplingParams(max_new_tokens=40, regex=LINES)
    whole = llm.generate([TEXT], params)[0]
    assert whole.finish.reason == "stop" and len({*whole.output_ids}) > 8
    stops = list(dict.fromkeys(whole.output_ids))
    for token, out in zip(
        stops, llm.generate([TEXT] * len(stops), [replace(params, stop_token_ids=(t,)) for t in stops]), strict=True
    ):
        assert out.output_ids == whole.output_ids[: whole.output_ids.index(token) + 1]
        assert (out.finish.reason, out.finish.matched) == ("stop", token)


def test_completions_have_a_matcher_each_and_prefix_hits_and_stops_change_nothing(plain):
    params = SamplingParams(max_new_tokens=24, n=3, temperature=1.2, seed=5, regex=r" [A-Z][a-z]+ [a-z ]+\.")
    llm = engine("EAGLE3", 1, spec_version="v2", enable_deterministic_inference=True)
    for _ in range(2):  # the second time from the prefix cache
        outs = llm.generate([TEXT], params)
        found = [[*out.output_ids] for out in outs]
        each = [replace(params, n=1, seed=5 + place) for place in range(3)]
        assert found == [decoded(plain, plain.tokenizer.encode(TEXT), one) for one in each]
    assert len({*map(tuple, found)}) > 1 and outs[0].cached_tokens
    stop = outs[0].text[3:6]
    cut = llm.generate([TEXT], replace(params, n=1, stop=(stop,)))[0]
    assert cut.text == outs[0].text[: outs[0].text.index(stop)] and cut.finish.matched == stop


def test_an_aborted_request_leaves_nothing_for_the_next_in_its_row():
    llm = engine("EAGLE3", 1, spec_version="v2", max_running_requests=1)
    rid = llm.add(TEXT, SamplingParams(max_new_tokens=60, regex="[0-9 ]+"))
    for _ in range(4):
        llm.step()
    assert llm.abort(rid)
    free = llm.generate([TEXT], SamplingParams(max_new_tokens=40))[0]
    assert free.text.endswith("#### 64")


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize(("marker", "inside"), [(" left.\n", True), ("\n####", False)])
def test_a_grammar_begins_after_the_tokens_that_end_reasoning(plain, topk, marker, inside):
    """Behind a marker of several tokens that ends at a draft or with a round."""
    ids = tuple(plain.tokenizer.encode(marker)[1:])
    free = plain.generate([TEXT], SamplingParams(max_new_tokens=60))[0]
    places = [n for n in range(len(free.output_ids)) if free.output_ids[n : n + len(ids)] == ids]
    params = SamplingParams(max_new_tokens=60, regex=REST, reasoning_end_ids=ids)
    expected = decoded(plain, plain.tokenizer.encode(TEXT), params)
    for version in ("v1", "v2"):
        llm = engine("EAGLE3", topk, spec_version=version, enable_deterministic_inference=True)
        outs = llm.generate([TEXT, TEXT], [params, replace(params, **WARM)])
        assert [*outs[0].output_ids] == expected and places
        begins = places[0] + len(ids)
        assert tuple(expected[:begins]) == free.output_ids[:begins]
        assert re.fullmatch(REST, llm.tokenizer.decode(expected[begins:]))
        assert [*outs[1].output_ids] == decoded(plain, plain.tokenizer.encode(TEXT), replace(params, **WARM))
        ends = [1 + sum(outs[0].accept_lengths[:rounds]) for rounds in range(len(outs[0].accept_lengths))]
        assert (begins not in ends) is inside


def test_special_tokens_and_the_heads_padding_are_never_allowed(plain):
    """The begin token's text would match, and no draft or sample may be a token that the tokenizer lacks."""
    params = SamplingParams(max_new_tokens=30, regex=r"[<|a-z>]{8,12}", logit_bias={0: 100.0}, ignore_eos=True)
    out = plain.generate([TEXT], params)[0]
    assert 0 not in out.output_ids and re.fullmatch(r"[<|a-z>]{8,12}", out.text)
