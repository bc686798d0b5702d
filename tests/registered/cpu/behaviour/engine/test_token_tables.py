"""Token tables give the masks of the host's matchers, to the bit, along every tree and behind every marker."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.grammar import Constraint
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.step import PlanRow, StepPlan
from specmatrix.engine.device.grammar_masks import HOST, TABLES, GrammarMasks
from specmatrix.engine.device.staging import Staged, StepOutput
from specmatrix.engine.device.token_tables import KEPT
from specmatrix.engine.grammar_compiler import GrammarCompiler
from specmatrix.engine.models.tokenizer import Tokenizer
from specmatrix.matrix.workloads.grammars import grammars
from tests.support.engines import CHECKPOINTS, engine
from tests.support.grammars import decoded

V, NODES = 768, 6
TEXT = "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:"
COMPILER = GrammarCompiler(Tokenizer(CHECKPOINTS / "llama-mini"), V)
PARTS = st.sampled_from(
    ["[a-d]", "[^b]", "[à-ü]+", "(ab|ac|b)", "[0-9]{2,4}", "(x|yz){0,2}", "[A-Z][a-z]*", "( the|\\n)+"]
)
REGEX = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: ("regex", "".join(parts)))
RULES = ["root ::= [a-c] root | rest", 'root ::= ("a" rest){1,3}', "root ::= rest+ [0-9]"]
EBNF = st.tuples(st.sampled_from(RULES), st.sampled_from(['"b" | ""', '[a-z] [é-ü]? " "*', '"(" rest ")" | "x"']))
VALUES = [{"enum": ["ab", "abc", 7]}, {"type": "string", "maxLength": 3}, {"type": "integer"}, {"type": "boolean"}]
SCHEMA = st.sampled_from(VALUES).map(lambda one: {"type": "object", "properties": {"a": one}, "required": ["a"]})
GRAMMARS = st.one_of(
    REGEX,
    EBNF.map(lambda two: ("ebnf", f"{two[0]}\nrest ::= {two[1]}\n")),
    SCHEMA.map(lambda schema: ("json_schema", json.dumps(schema))),
)
# Its table has more than 32 classes, whose numbers beside those of a marker leave 16 bits.
MANY_CLASSES = ("json_schema", grammars()["json"][1].json_schema)


class Rounds:
    """Rounds of one request's masks, without a model."""

    def __init__(self, params: SamplingParams, tabled: bool) -> None:
        self.compiled = {params.constraint: COMPILER.compile(params.constraint)}
        given = Counters(), lambda work, plan: work(plan), torch.device("cpu"), tabled
        self.masks = GrammarMasks(self.compiled, (3, V), *given)
        row = PlanRow(1, 1, 2, NODES, 99, 1)
        self.masks.admit([row._replace(admit=(params, 0, 99), arrived=(1, (0,)))])
        self.plan = StepPlan(False, (row,), True, constrained=True, nodes=NODES)

    def of(self, tokens: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """The tokens that masks allow after each node, bool [N, V]."""
        self.rows = self.masks.rows_of(self.plan, torch.tensor([2]))
        if self.rows is not None:
            self.rows.walk(tokens, parents, NODES - 1)
        return self.masks.apply(self.plan, tokens, parents, torch.zeros(1, NODES, V), self.rows)[0][0].isfinite()

    def accept(self, path: list[int], emitted: list[int]) -> None:
        if self.rows is not None:
            self.rows.advance(torch.tensor([path[-1:]]), torch.tensor([emitted[-1:]]))
        self.masks.launched(
            self.plan, Staged(0, StepOutput(torch.tensor([emitted]), torch.tensor([len(emitted)])), None)
        )


@settings(max_examples=60, deadline=None)
@example(MANY_CLASSES, (310,), Random(0))
@given(grammar=GRAMMARS, marker=st.sampled_from([(), (310,), (310, 311, 310), (310, 310)]), draw=st.randoms())
def test_masks_equal_the_hosts_along_every_tree(grammar, marker, draw):
    """Draft trees that mix legal and illegal tokens; each accepts its first legal path, until the grammar ends."""
    params = SamplingParams(**{grammar[0]: grammar[1]}, reasoning_end_ids=marker)
    host, table = Rounds(params, tabled=False), Rounds(params, tabled=True)
    small = table.compiled[params.constraint].table is not None
    assert table.masks.path(table.plan) == (TABLES if small else HOST) and host.masks.path(host.plan) == HOST
    likely, emitted = [310, 311], [0]
    for _ in range(12):
        parents = [-1, *(draw.randrange(node) for node in range(1, NODES))]
        tokens = [0, *(draw.choice(likely) for _ in parents[1:])]
        tree = torch.tensor([tokens]), torch.tensor([parents])
        allowed, found = host.of(*tree), table.of(*tree)
        assert torch.equal(allowed, found)
        path = [0]
        for node in range(1, NODES):
            if parents[node] == path[-1] and allowed[path[-1], tokens[node]]:
                path.append(node)
        legal = allowed[path[-1]].nonzero()[:, 0].tolist()
        likely = [310, 311, *draw.sample(legal, min(len(legal), 6 if len(legal) < V else 0))]
        emitted = [*(tokens[node] for node in path[1:]), draw.choice(likely if marker else legal)]
        host.accept(path, emitted)
        table.accept(path, emitted)
        if 1 in emitted or emitted[-1] not in legal:
            break


def test_small_grammars_have_tables_and_others_do_not():
    for kind, text, states in (
        ("regex", "[a-c]{1,3}", 4),
        ("regex", r"( [A-Z][a-z]{2,4}\n){1,2}#[0-9]", 17),  # of several rules
        ("ebnf", 'root ::= "a" root | "b"', 2),  # repetition by recursion
        ("ebnf", 'root ::= "(" root ")" | "x"', None),  # no finite automaton
        ("ebnf", 'root ::= root "a" | "b"', None),
        ("regex", "[ab]*a[ab]{12}", None),  # 8192 states
    ):
        table = COMPILER.compile(Constraint(kind, text)).table
        assert (None if table is None else len(table.after)) == states, text


def test_more_grammars_than_fit_on_the_device_are_masked_by_the_host():
    llm = engine("EAGLE3", 1, max_running_requests=KEPT + 2, max_total_tokens=4096)
    params = [SamplingParams(max_new_tokens=8, regex=f"(x{number}|[a-z ])+") for number in range(KEPT + 2)]
    outs = llm.generate([TEXT] * len(params), params)
    expected = decoded(llm, llm.tokenizer.encode(TEXT), params[-1])
    assert [*outs[-1].output_ids] == expected and not llm.counters["grammar.on_device"]
    for _ in range(2):  # a row holds its table until its next request
        again = llm.generate([TEXT] * len(params), params[-1])
        assert {out.output_ids for out in again} == {outs[-1].output_ids}
    assert llm.counters["grammar.on_device"]


CHAINS = [(name, 1, rule) for name in ("EAGLE3", "STANDALONE", "NEXTN") for rule in ("match", "reject")]
CHAINS += [("EAGLE3 in parallel", 1, "match"), ("STANDALONE in parallel", 1, "reject")]
DRAFTERS = [*CHAINS, ("EAGLE3", 3, "match"), ("NEXTN", 3, "match")]


@pytest.mark.parametrize(("algorithm", "topk", "rule"), DRAFTERS)
def test_constrained_drafts_change_acceptance_and_no_text(algorithm, topk, rule):
    shape = {"enable_deterministic_inference": True, "speculative_acceptance": rule}
    params = SamplingParams(max_new_tokens=24, regex="( [A-Z][a-z]{2,5}[0-9]){1,6}")
    warm = replace(params, temperature=0.8, seed=4)
    given = [params, warm, SamplingParams(max_new_tokens=24)] if rule == "match" else [params] * 3
    free, masked = (engine(algorithm, topk, speculative_constrained_drafts=on, **shape) for on in (False, True))
    outs = [llm.generate([TEXT] * 3, given) for llm in (free, masked)]
    assert [out.output_ids for out in outs[0]] == [out.output_ids for out in outs[1]]
    assert masked.counters["grammar.masked_drafts"] and not free.counters["grammar.masked_drafts"]
    assert masked.counters["grammar.forbade"] < free.counters["grammar.forbade"]
    assert topk > 1 or not masked.counters["grammar.forbade"], "each draft of a chain follows the one before it"
    if rule == "reject":
        assert masked.generate([TEXT] * 2, warm)[0].text and masked.counters["sample.random"]


def test_drafts_of_texts_stay_as_they_are():
    resolved = engine("NGRAM", 3, speculative_constrained_drafts=True).resolved
    rewrite = "NGRAM does not choose each draft by logits after the one before it"
    assert [one.reason for one in resolved.rewrites] == [rewrite] and not resolved.speculative_constrained_drafts
