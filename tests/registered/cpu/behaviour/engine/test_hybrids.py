"""Hybrids through the whole engine: recurrent states follow the accepted tokens whatever is drafted, retracted, aborted
or cut into chunks. The checkpoints have random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.defaults import SHAPE
from specmatrix.engine.core.draft.algorithms import Topology, Traits
from specmatrix.engine.core.memory.replay import replay
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.device.batch import count
from specmatrix.engine.device.kv_groups import StateGroup
from specmatrix.engine.device.relay import DraftStateSpec
from specmatrix.engine.parallel.client import RankedLLM
from specmatrix.engine.parallel.group import end_idle_group
from specmatrix.engine.plugin import forget_algorithm, register_algorithm
from specmatrix.engine.spec.drafter import DraftTree, chain
from specmatrix.errors import ConfigError
from specmatrix.kernels.tree_layout import tree_layout
from specmatrix.matrix.zoo.checkpoint import new_net, read_net, write
from specmatrix.matrix.zoo.heads import whole
from specmatrix.matrix.zoo.net import FINAL, rope_table
from specmatrix.matrix.zoo.recipes import RECIPES
from specmatrix.matrix.zoo.registry import HERE
from tests.support.drafter_harness import Drafting, paths, run

TEXTS = ("Eli had 75 keys. He gave 11 of them to Cora.", "A garden is 19 feet long", "Mia has 3 pens", "Question: Jo")
PARAMS = SamplingParams(max_new_tokens=30, ignore_eos=True)
STRICT = {"strict_memory": 2, "kv_stamps": True, "max_total_tokens": 768, "context_length": 192}
TREE = [-1, 0, 0, 1, 2, 3, 4]
# The shapes of the drafts, each in both timings; chunks and pages do not divide the prompts.
SHAPES = {
    "chain": {"speculative_num_steps": 4, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 5},
    "tree": {"speculative_num_steps": 3, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 7},
}
TRAITS = Traits("FORESIGHT", "knows the target's output, and errs at some positions", Topology.TREE)


class Foresight:
    """Drafts each line's true continuation, wrong where the position says so; a tree has the right token in either of
    two branches. lines int64 [M, L]: prompts and their continuations."""

    capture: tuple[int, ...] = ()
    key_span = 0
    carries = (DraftStateSpec("line", (1,), torch.int64),)
    lines: torch.Tensor

    def __init__(self, context) -> None:
        resolved = context.resolved
        self.traits, self.steps, self.topk = context.traits, resolved.num_steps, resolved.topk
        self.nodes = resolved.num_draft_tokens

    def prime(self, batch, tokens, aux, sampled, following):
        column = count(batch.width, tokens.device)
        known = self.lines[:, (batch.start[:, None] + column).clamp(max=self.lines.shape[1] - 1)]
        same = (known == tokens) | (column >= batch.lengths[:, None])
        return {"line": same.all(2).long().argmax(0)[:, None]}

    def propose(self, batch, relay):
        depth = count(self.steps + 1, batch.rows.device)
        at = batch.start[:, None] + depth
        true = self.lines[batch.carried["line"], at.clamp(max=self.lines.shape[1] - 1)]
        wrong = true + (at % 5 == 4).long()
        if self.topk == 1:
            drafts = torch.cat((batch.root, wrong[:, 1:] % 768), 1)
            return chain(drafts[:, : batch.width])
        # Depth d has nodes 2d - 1 and 2d; the second branch holds the truth at every third position.
        second = (batch.start % 3 == 0)[:, None]
        left, right = torch.where(second, true + 2, wrong), torch.where(second, wrong, true + 2)
        tokens = torch.cat((batch.root, torch.stack((left, right), 2)[:, 1:].flatten(1) % 768), 1)
        parents = torch.tensor(TREE).expand(len(tokens), -1).contiguous()
        return DraftTree(tokens, parents, *tree_layout(parents), 3)

    def absorb(self, batch, verdict, aux):
        return batch.carried


@pytest.fixture(scope="module", params=["qwen3next-mini", "qwen35-mini"])
def folder(request, tmp_path_factory):
    torch.manual_seed(1)
    net, made = new_net(RECIPES[request.param]), tmp_path_factory.mktemp(request.param)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_((parameter * 2 + 0.05 * torch.randn_like(parameter)).half().float())
    write(made, RECIPES[request.param], net, (HERE / "data" / "tokenizer.json").read_text(encoding="utf-8"))
    return made


def start(folder, algorithm: str | None = None, **more: object) -> LLM:
    return LLM(EngineConfig(str(folder), *(() if algorithm is None else (algorithm,)), **STRICT | more))


def answers(llm: LLM, prompts) -> list[tuple[int, ...]]:
    """The outputs; every stamp that was compared must have been right, and the journal must replay."""
    journal: list = []
    llm.loop.scheduler.ledger.subscribe(journal.append)
    outs = llm.generate(prompts, PARAMS)
    hits = llm.counters
    assert hits["stamp.wrong"] == 0 < hits["stamp.checked"]
    replay(journal)
    return [out.output_ids for out in outs]


@pytest.fixture(scope="module")
def truth(folder):
    """Prompts and their plain continuations, which outlast any test."""
    llm = start(folder, max_running_requests=4)
    prompts = [[7 + i, *llm.tokenizer.encode(text)] for i, text in enumerate(TEXTS)]
    outs = llm.generate(prompts, SamplingParams(max_new_tokens=60, ignore_eos=True))
    return prompts, [list(out.output_ids) for out in outs]


@pytest.fixture
def foresight(truth):
    made = torch.zeros(len(truth[0]), 192, dtype=torch.int64)
    for row, (prompt, output) in enumerate(zip(*truth, strict=True)):
        made[row, : len(prompt) + len(output)] = torch.tensor([*prompt, *output])
    Foresight.lines = made
    register_algorithm(TRAITS, Foresight)
    yield
    forget_algorithm(TRAITS.name)


@torch.inference_mode()
def test_plain_decoding_takes_the_tokens_that_transformers_prefers(folder, truth):
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, output in zip(*truth, strict=True):
        logits = theirs(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        mine = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert (logits.amax(1) - mine).max() < 3e-3
        assert (logits.argmax(1) == torch.tensor(output)).sum() >= len(output) - 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"chunked_prefill_size": 5, "page_size": 4, "max_running_requests": 2},
        {"max_total_tokens": 120, "page_size": 8, "chunked_prefill_size": 11},
        {"max_total_tokens": 120, "page_size": 4, "state_interval": 8},
    ],
    ids=["roomy", "recycled slots and chunks", "tight memory", "tight memory and checkpoints"],
)
def test_drafts_change_no_token(folder, truth, foresight, shape, version, more):
    llm = start(folder, TRAITS.name, spec_version=version, **SHAPES[shape], **more)
    prompts, outputs = truth
    assert answers(llm, prompts) == [tuple(output[:30]) for output in outputs]
    hits = llm.counters
    assert ("max_total_tokens" in more) == (hits["retract.done"] > 0)
    assert min(hits["spec.rejected"], hits["spec.full_accept"], hits["spec.accepted"] - hits["spec.full_accept"]) > 0


@pytest.mark.parametrize("more", [{}, {"speculative_ngram_max_bfs_breadth": 1}, {"max_running_requests": 1}])
def test_ngram_drafts_change_no_token(folder, truth, tmp_path, more):
    prompts, outputs = truth
    broken = [[token + (i % 7 == row) for i, token in enumerate(output)] for output in outputs for row in (2, 5)]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps([t % 768 for t in line]) for line in broken), encoding="utf-8")
    corpus = {"speculative_ngram_external_corpus_path": str(path), "speculative_ngram_external_sam_budget": 6}
    llm = start(folder, "NGRAM", **corpus, **more)
    assert answers(llm, prompts) == [tuple(output[:30]) for output in outputs]
    assert llm.counters["spec.accepted"] > 0


class WholeHead:
    """The zoo's MTP head over whole sequences."""

    def __init__(self, folder) -> None:
        self.net = read_net(folder, RECIPES[folder.name[:-1]], torch.device("cpu"))

    def run(self, tokens, states):
        table = rope_table(self.net.shape, torch.arange(len(tokens)))
        return self.net.bundled(0).step(tokens[None], torch.stack(states)[None], table, whole)[0][0]

    def logits(self, out):
        return self.net.lm_head(out)


@pytest.mark.parametrize(("steps", "topk", "nodes"), [(1, 1, 2), (4, 1, 5), (3, 2, 6)])
@pytest.mark.parametrize("version", ["v1", "v2"])
@torch.inference_mode()
def test_the_mtp_head_drafts_what_its_formula_gives(folder, truth, steps, topk, nodes, version):
    shape = dict(zip(SHAPE, (steps, topk, nodes), strict=True))
    llm = start(folder, "NEXTN", **shape, spec_version=version, page_size=4, chunked_prefill_size=7)
    prompts, head = truth[0][:2], WholeHead(folder)
    truths = [[*prompt, *output] for prompt, output in zip(*truth, strict=True)][:2]
    for tokens, proposals in zip(truths, run(llm, prompts, truths, 20), strict=True):
        drafting = Drafting(head, tokens, head.net(torch.tensor([tokens]), aux=(FINAL,))[1][0])
        for proposal in proposals:
            if topk == 1:
                drafting.check_chain(proposal)
            else:
                assert paths(proposal) == drafting.best(proposal.start, steps, topk, nodes)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_an_abort_leaves_its_slot_clean_for_the_next_request(folder, truth, foresight, version):
    llm = start(folder, TRAITS.name, spec_version=version, max_running_requests=1, **SHAPES["tree"])
    prompts, outputs = truth
    for prompt, output in zip(prompts, outputs, strict=True):
        gone = llm.add(prompts[0], PARAMS)
        for _ in range(4):
            llm.step()
        assert llm.abort(gone)
        assert answers(llm, [prompt]) == [tuple(output[:30])]


def test_a_turn_inherits_a_state_of_what_the_user_saw_or_computes_it_again(folder, truth, foresight):
    """Plain decoding without overlap ends a turn at its state; after a round that runs past the end there is a
    checkpoint, if they are near enough."""
    prompt, output = truth[0][0], truth[1][0]
    seen = len(prompt) + 8
    for algorithm, interval, inherits in ((None, 0, seen - 1), (TRAITS.name, 0, 0), (TRAITS.name, 8, seen // 8 * 8)):
        shape = SHAPES["chain"] if algorithm else {}
        more = {"state_interval": interval, "disable_radix_cache": True, "page_size": 4}
        llm = start(folder, algorithm, spec_version="v1", enable_streaming_session=True, **shape, **more)
        name = llm.open_session(1000, streaming=True)
        turns = [(prompt, 8), (output[8:12], 17)]
        said = []
        for tokens, length in turns:
            params = SamplingParams(max_new_tokens=length, ignore_eos=True)
            (out,) = llm.generate([tokens], params, SessionParams(name))
            said.append(list(out.output_ids))
        assert said == [output[:8], output[12:29]]
        assert llm.counters["session.inherited"] == inherits
        assert llm.counters["stamp.wrong"] == 0


def test_what_a_hybrid_cannot_do_is_refused_or_rewritten(folder):
    with pytest.raises(ConfigError, match="tp_size 4 cannot split a target with 2 key heads of recurrent layers"):
        start(folder, tp_size=4)
    with pytest.raises(ConfigError, match="has layers with a recurrent state; a STANDALONE draft must have full"):
        start(folder, "STANDALONE", speculative_draft_model_path=str(folder))
    (rewrite,) = start(folder, state_interval=0).resolved.rewrites
    assert (rewrite.field, rewrite.got) == ("disable_radix_cache", True) and "recurrent state" in rewrite.reason
    with pytest.raises(ConfigError, match="state_interval must be at least 4, the nodes of the widest round, got 3"):
        start(folder, "NEXTN", state_interval=3)


def test_two_ranks_answer_as_one(folder, truth):
    """Each has the states of one key head; one leaves the text where memory is short, and all begin at checkpoints."""
    prompts, outputs = truth
    setting = STRICT | {"max_total_tokens": 160, "page_size": 4, "state_interval": 8, "chunked_prefill_size": 7}
    with RankedLLM(EngineConfig(str(folder), "NEXTN", tp_size=2, **setting), Path) as llm:
        for _ in range(2):
            assert [out.output_ids for out in llm.generate(prompts, PARAMS)] == [tuple(o[:30]) for o in outputs]
        hits = llm.counters
        assert llm.group.agreement.divergence is None
    assert hits["stamp.wrong"] == 0 < min(hits["stamp.checked"], hits["prefix.hit"], hits["retract.done"])
    end_idle_group()


@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("algorithm", [None, "NEXTN"])
def test_a_prompt_behind_a_checkpoint_is_answered_as_one_from_the_start(folder, truth, algorithm, version, beyond):
    """The second prompt leaves the first one's text `beyond` its second checkpoint; MTP's key has a token more."""
    text = [*truth[0][0], *truth[1][0]]
    prompts = [text[:40], [*text[: 24 + beyond], *text[:9]]]
    setting = {"spec_version": version, "page_size": 4, "chunked_prefill_size": 7}
    cold = start(folder, algorithm, **setting, disable_radix_cache=True)
    due = [answers(cold, [prompt]) for prompt in prompts]
    warm = start(folder, algorithm, **setting, state_interval=12)
    assert [answers(warm, [prompt]) for prompt in prompts] == due
    assert warm.counters["prefix.hit"] == (24 if beyond >= (algorithm is not None) else 12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_checkpoint_within_a_round_is_the_state_of_its_own_tokens(folder, truth, foresight, shape, version):
    """Each continuation begins where the answer before it had a checkpoint, mostly within a round."""
    prompts, outputs = truth
    llm = start(folder, TRAITS.name, spec_version=version, state_interval=8, **SHAPES[shape])
    assert answers(llm, prompts) == [tuple(output[:30]) for output in outputs]
    hit = llm.counters["prefix.hit"]
    longer = [[*prompt, *output[:25]] for prompt, output in zip(*truth, strict=True)]
    assert answers(llm, longer) == [tuple(output[25:55]) for output in outputs]
    assert llm.counters["prefix.hit"] - hit == sum((len(prompt) - 1) // 8 * 8 for prompt in longer)


@pytest.mark.parametrize(("old", "new"), [((8, 0), (8, 1)), ((8, 0), (9, 0))], ids=["one further", "not taken"])
def test_a_wrong_checkpoint_is_found_by_its_stamp(folder, truth, foresight, monkeypatch, old, new):
    def wrong(self, slots, verdict):
        self.interval = new[0]
        COMMIT(self, slots._replace(start=slots.start + new[1]), verdict)
        self.interval = old[0]

    monkeypatch.setattr(StateGroup, "commit", wrong)
    llm = start(folder, TRAITS.name, state_interval=8, **SHAPES["chain"])
    llm.generate(truth[0], PARAMS)
    llm.generate([[*prompt, *output[:25]] for prompt, output in zip(*truth, strict=True)], PARAMS)
    assert llm.counters["stamp.wrong"] > 0


COMMIT, SLOTS, STATES = StateGroup.commit, StateGroup.slots, StateGroup.states


def _but(skipped):
    """A commit that leaves out the rows for which `skipped` holds."""

    def commit(self, slots, verdict):
        rows = skipped(verdict)
        pages = slots.pages.masked_fill(rows[:, None], 0)
        COMMIT(self, slots._replace(pages=pages, write=slots.write.masked_fill(rows[:, None], 0)), verdict)

    return {"commit": commit}


def _one_further(self, slots, verdict):
    COMMIT(self, slots, verdict._replace(count=(verdict.count + 1).clamp(max=verdict.path.shape[1])))


def _uncleared(self, batch):
    slots = SLOTS(self, batch)
    return slots._replace(read=self.table.read(batch.rows, 1))


DEFECTS = {
    "no commit when all was accepted": ("tree", _but(lambda v: v.count == v.path.shape[1])),
    "no commit when all was rejected": ("chain", _but(lambda v: v.count == 1)),
    "no commit when nothing was drafted": (None, _but(lambda v: v.count > 0)),
    "the node after the last accepted one": ("tree", {"commit": _one_further}),
    "a node starts from the one before it": ("tree", {"states": lambda self, slots, _: STATES(self, slots, None)}),
    "a recycled slot is not cleared": ("chain", {"slots": _uncleared}),
}
STAMPED = {name for name in DEFECTS if "commit" in name or "accepted one" in name}


@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_of_a_commit_changes_the_output(folder, truth, foresight, monkeypatch, name):
    """The stamps name those that leave a state of another length."""
    shape, broken = DEFECTS[name]
    for method, planted in broken.items():
        monkeypatch.setattr(StateGroup, method, planted)
    drafting = {} if shape is None else SHAPES[shape]
    llm = start(folder, TRAITS.name if shape else None, max_running_requests=2, **drafting)
    prompts, outputs = truth
    assert [out.output_ids for out in llm.generate(prompts, PARAMS)] != [tuple(output[:30]) for output in outputs]
    assert (llm.counters["stamp.wrong"] > 0) == (name in STAMPED)
