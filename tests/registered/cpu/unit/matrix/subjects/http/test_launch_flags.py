"""The start that a running server has, from what it reports of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.http.openai import OpenAISubject
from specmatrix.matrix.subjects.http.sglang import (
    NO_V1,
    SglangSubject,
    biased,
    mismatches,
    running_start,
    unjudged_sizes,
)
from specmatrix.matrix.subjects.protocol import EngineCommand, Subject, Unsupported
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec

SERVER: dict[str, Any] = {
    "version": "0.5.13.post1",
    "model_path": "/models/llama-mini",
    "dtype": "float32",
    "tp_size": 1,
    "page_size": 1,
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "disable_overlap_schedule": False,
    "disable_radix_cache": False,
    "chunked_prefill_size": 8192,
    "max_running_requests": 48,
    "max_total_tokens": None,
    "context_length": None,
}
PLAIN = {name: None for name in SERVER if name.startswith("speculative_")}


@pytest.mark.parametrize(
    ("reports", "start"),
    [
        ({}, "eagle3.s3.k1.n4.v2"),
        (PLAIN, "none.v2"),
        ({"page_size": 16, "chunked_prefill_size": 32, "max_running_requests": 4}, "eagle3.s3.k1.n4.v2.p16.c32.m4"),
        ({"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}, "eagle3.s3.k4.n8.v2"),
        # Sizes that no cell has, or that tests leave to others, are whatever runs.
        ({"speculative_num_steps": 4, "speculative_num_draft_tokens": 5}, "eagle3.v2"),
        ({"speculative_eagle_topk": 4}, "eagle3.s3.k4.v2"),
        ({"speculative_algorithm": "EAGLE"}, "eagle.s3.k1.n4.v2"),
        ({"speculative_algorithm": "EAGLE", "model_path": "deepseek-mini"}, "nextn.deepseek.s3.k1.n4.v2"),
        ({"model_path": "qwen3-mini", "disable_radix_cache": True}, "eagle3.qwen3.s3.k1.n4.v2.nocache"),
        ({"disable_overlap_schedule": True}, "eagle3.s3.k1.n4.sync"),
        ({"disable_overlap_schedule": True, "version": "0.5.12.post1"}, "eagle3.s3.k1.n4.v1"),
        ({"disable_overlap_schedule": True, "spec_version": "v1", "version": "0.1.0"}, "eagle3.s3.k1.n4.v1"),
        ({"max_total_tokens": 192, "tp_size": 2, **PLAIN}, "none.tp2.v2.tight"),
        ({"dtype": "float"}, "eagle3.s3.k1.n4.v2"),
        ({"model_path": "qwen3next-mini", "mamba_track_interval": 16, **PLAIN}, "none.qwen3next.v2.i16"),
        ({"model_path": "qwen3next-mini", "mamba_track_interval": 256, **PLAIN}, "none.qwen3next.v2"),
    ],
    ids=str,
)
def test_the_start_of_a_server_has_each_of_its_values(reports: dict[str, Any], start: str):
    found = running_start(SERVER | reports)
    assert found.id == start and not list(mismatches(found, SERVER | reports))


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ({"model_path": "Qwen/Qwen3-8B"}, "the server runs the model Qwen3-8B, not llama-mini"),
        ({"model_path": None}, "the server does not name its model"),
        ({"page_size": 32}, "the server runs page_size 32, not 1"),
        ({"dtype": "auto"}, "the server runs dtype auto, not float32"),
        ({"dtype": "half"}, "the server runs dtype half, not float32"),
        ({"chunked_prefill_size": 512}, "the server runs chunked_prefill_size 512, which splits prompts"),
        ({"speculative_adaptive": True}, "the server does not report the table of its adaptive steps"),
        ({"enable_mixed_chunk": True}, "a server does not report which tokens its mixed steps (enable_mixed_chunk) em"),
        ({"speculative_algorithm": "NEXTN"}, "nextn: the drafter's layers are in the target's checkpoint"),
    ],
)
def test_a_configuration_that_no_cell_has_is_refused_by_its_first_value(reports: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match="no cell has the server's configuration: ") as refused:
        running_start(SERVER | reports)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("version", "reasons"), [("0.5.12.post1", []), ("0.5.13", [NO_V1]), ("0.6.0.dev3", [NO_V1]), ("main", [NO_V1])]
)
def test_v1_is_of_versions_that_have_it(version: str, reasons: list[str]):
    cell = Cell.from_id("eagle3.s3.k1.n4.v1")
    server = SERVER | {"version": version, "disable_overlap_schedule": True}
    assert list(mismatches(cell, server)) == reasons


@pytest.mark.parametrize(
    ("sizes", "judged"),
    [
        *(((None, None, None), True), ((3, 1, 4), True), ((1, 1, 2), True), ((5, 4, 16), True), ((1, 1, 6), True)),
        *(((4, 1, 5), False), ((5, 8, 64), False), ((3, 4, 12), False)),
    ],
)
def test_acceptance_is_judged_for_sizes_that_cells_have(sizes: tuple[int | None, ...], judged: bool):
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    assert (unjudged_sizes(SERVER | dict(zip(names, sizes, strict=True))) == "") == judged


def test_a_cell_needs_a_server_of_its_own_precision():
    cell = Cell.from_id("eagle3.s3.k1.n4")
    for dtype in ("auto", "half", "bfloat16"):
        assert list(mismatches(cell, SERVER | {"dtype": dtype})) == [f"the server runs dtype {dtype}, not float32"]
    unsaid = {name: value for name, value in SERVER.items() if name != "dtype"}
    assert list(mismatches(cell, unsaid)) == ["the server does not report dtype"]


@pytest.mark.parametrize("subject", [OpenAISubject(), SglangSubject()], ids=lambda subject: subject.name)
def test_bans_of_json_cells_are_biases_for_servers(subject: Subject):
    cell = Cell.from_id("eagle3.mixed_lengths.json")
    plain, sent = Subject.requests(subject, cell, 0), subject.requests(cell, 0)
    assert any(one.bad_words_ids for one in plain) and not any(one.bad_words_ids for one in sent)
    for one, other in zip(plain, sent, strict=True):
        assert other.logit_bias == tuple((token, -100.0) for (token,) in one.bad_words_ids)


REGEX, EBNF, TAGGED = ("eagle3.mixed_lengths." + kind for kind in ("regex", "ebnf", "tagged"))
OURS = OpenAISubject(server=SERVER | {"model_path": "llama-mini", "speculative_algorithm": "EAGLE3"})
VLLMS = OpenAISubject(owner="vllm")


@pytest.mark.parametrize(
    ("subject", "cell", "sent"),
    [
        (VLLMS, REGEX, lambda text: {"structured_outputs": {"regex": text}}),
        (VLLMS, EBNF, lambda text: {"structured_outputs": {"grammar": text}}),
        (OURS, REGEX, lambda text: {"regex": text}),
        (OURS, EBNF, lambda text: {"ebnf": text}),
        (VLLMS, TAGGED, lambda text: {"response_format": json.loads(text)}),
        (OURS, TAGGED, lambda text: {"response_format": json.loads(text)}),
    ],
)
def test_grammars_are_sent_to_openai_servers_in_fields_that_they_have(
    subject: OpenAISubject, cell: str, sent: Callable[[str], dict[str, object]]
):
    prepared = prepare(Cell.from_id(cell), "cpu", 0, subject.requests)
    found = subject.translate(prepared)
    assert isinstance(found, EngineCommand)
    pairs = [(one.grammar, ask) for one, ask in zip(prepared.requests, found.asks, strict=True) if one.grammar]
    assert pairs and all(sent(text).items() <= ask.fields.items() for (_, text), ask in pairs)


def test_no_grammar_but_json_is_sent_to_an_openai_server_that_does_not_say_what_it_is():
    subject = OpenAISubject()
    found = [
        subject.translate(prepare(Cell.from_id(cell), "cpu", 0, subject.requests)) for cell in (REGEX, EBNF, TAGGED)
    ]
    assert found == [Unsupported(f"OpenAI's API has no {name}") for name in ("regex", "ebnf", "structural_tag")]
    assert isinstance(
        subject.translate(prepare(Cell.from_id("eagle3.mixed_lengths.json"), "cpu", 0, subject.requests)), EngineCommand
    )


def test_a_speculating_vllm_server_is_sent_no_bias():
    prepared = prepare(Cell.from_id("ngram.mixed_lengths.json"), "cpu", 0, OpenAISubject().requests)
    for drafts in (True, False):
        found = OpenAISubject(owner="vllm", drafts=drafts).translate(prepared)
        reason = "vLLM takes neither min_p nor logit_bias with speculative decoding"
        assert (found == Unsupported(reason)) is drafts


def test_bans_that_no_bias_can_say_stay():
    one = RequestSpec("a", "text", 4, bad_words_ids=((3, 4),), reasoning_end_ids=(7,))
    assert biased(one).bad_words_ids == ((3, 4),) and not biased(one).reasoning_end_ids
    other = replace(one, bad_words_ids=((3,),), logit_bias=((5, 1.0),))
    assert (biased(other).bad_words_ids, biased(other).logit_bias) == (((3,),), ((5, 1.0),))


@pytest.mark.parametrize("grammar", ["json", "regex", "ebnf", "tagged"])
def test_only_an_aborted_request_has_no_grammar(grammar):
    """Plain decoding of it goes on to its length, and would be judged by a grammar that has ended."""
    found = SglangSubject().requests(Cell.from_id(f"none.mixed_lengths.abort_running.{grammar}"), 0)
    aborted = [one for one in found if one.abort_after]
    assert aborted and all(one.grammar is None and one.ignore_eos for one in aborted)
    assert any(one.grammar for one in found)
