"""The contract of every algorithm: built in, registered and odd, or lying.

Under strict_memory the guard checks each proposal, so a run without an error is a run in which every proposal was as
the protocol says.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.draft.algorithms import ALGORITHMS, Topology, Traits, algorithm
from specmatrix.engine.device.relay import DraftStateSpec, Relay
from specmatrix.engine.plugin import forget_algorithm, register_algorithm
from specmatrix.engine.spec.autoregressive import AutoregressiveDrafter
from specmatrix.engine.spec.drafter import chain
from specmatrix.errors import ConfigError, KernelError
from specmatrix.matrix.conformance.child import with_models
from specmatrix.matrix.conformance.suite import FORCED, PARAMS, PROMPTS, STARTS, run_suite
from tests.support import misbehaving_drafter
from tests.support.misbehaving_drafter import BATCH_LIES, READERS, ROW_LIES, SHAPE, TRAITS, Pretender, raiser

# The ledger looks at every page of the pool in every step.
STRICT = {"strict_memory": 2, "max_total_tokens": 1024}


@pytest.fixture
def registered():
    """register_algorithm; everything that it adds is removed after the test."""
    names: list[str] = []

    def register(traits: Traits, build, **hooks: object) -> Traits:
        made = register_algorithm(traits, build, **hooks)
        names.append(made.name)
        return made

    yield register
    for name in names:
        forget_algorithm(name)


def run(llm: LLM) -> list[tuple[int, ...]]:
    return [output.output_ids for output in llm.generate(PROMPTS, PARAMS)]


@pytest.fixture(scope="module")
def plain(zoo):
    """The outputs of plain decoding, by target."""
    said: dict[str, list[tuple[int, ...]]] = {}

    def of(target: str) -> list[tuple[int, ...]]:
        if target not in said:
            said[target] = run(LLM(EngineConfig(target), zoo))
        return said[target]

    return of


@pytest.mark.parametrize("traits", ALGORITHMS, ids=lambda traits: traits.name)
def test_a_built_in_algorithm_keeps_the_contract(zoo, traits):
    results = list(run_suite(traits, with_models(traits, {}), zoo))
    assert [each for each in results if each.violations] == []
    kinds = 1 + (traits.topology is Topology.TREE) + traits.adaptive
    assert len({each.start for each in results}) == kinds * (len(STARTS) + traits.drafts * len(FORCED))
    assert all((each.tokens_per_round > 1) == traits.drafts for each in results)
    assert all((each.retracted > 0) == ("memory for two" in each.start) for each in results)


def test_the_suite_reports_a_built_in_drafter_that_waits_for_the_device(zoo, monkeypatch):
    """No cell sees it: it costs speed, and no tokens (sglang#28034)."""
    propose = AutoregressiveDrafter.propose

    def reads(self, batch, relay):
        int(batch.root[0, 0])
        return propose(self, batch, relay)

    monkeypatch.setattr(AutoregressiveDrafter, "propose", reads)
    result = next(run_suite(algorithm("EAGLE3"), with_models(algorithm("EAGLE3"), {}), zoo))
    assert result.violations == (
        "the drafter of EAGLE3 read a tensor on the host (Tensor.__int__) in propose without the trait reads_host",
    )


class CountingRelay(Relay):
    """Also counts what was kept, row by row."""

    def __init__(self, rows, drafter, device) -> None:
        super().__init__(rows, drafter.carries, device)
        self.kept = torch.zeros(rows, dtype=torch.int64)

    def stash(self, rows, state):
        super().stash(rows, state)
        self.kept[rows] += 1


class Odd:
    """Chains that count up from its carried state: a scalar and a matrix per request. No built-in has these traits."""

    capture: tuple[int, ...] = (0,)
    key_span = 2
    carries = (DraftStateSpec("next", (), torch.int64), DraftStateSpec("blank", (2, 3), torch.float16))

    def __init__(self, context) -> None:
        self.traits, self.vocab_size = context.traits, context.target.vocab_size
        self.steps, self.topk, self.nodes = context.resolved.num_steps, 1, context.verify_tokens
        self.pool = context.pool(context.target.kv)

    def prime(self, batch, tokens, aux, sampled, following):
        assert aux.shape[:2] == tokens.shape
        return {"next": sampled, "blank": torch.zeros(len(sampled), 2, 3, dtype=torch.float16)}

    def propose(self, batch, relay):
        ahead = batch.carried["next"][:, None] + torch.arange(1, batch.width)
        return chain(torch.cat((batch.root, ahead % self.vocab_size), 1))

    def absorb(self, batch, verdict, aux):
        last = verdict.tokens.gather(1, (verdict.count - 1)[:, None])[:, 0]
        return {"next": last, "blank": batch.carried["blank"]}


def few_steps(asked, facts):
    """Odd's own check of the requested configuration."""
    if asked.speculative_num_steps == 5:
        raise ConfigError(f"ODD does not like 5 steps on a {facts.architecture}; ask for 4")


ODD = Traits(
    "odd",
    "counts up from the last token",
    Topology.CHAIN,
    own_kv=True,
    needs_hidden=True,
    key_span=2,
    target_verify_for_draft=True,
)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_an_odd_registered_algorithm_runs_with_its_own_hooks(zoo, plain, registered, start):
    traits = registered(ODD, Odd, check=few_steps, relay=CountingRelay)
    llm = LLM(EngineConfig("llama-mini", "odd", speculative_num_steps=3, **STRICT | start), zoo)
    assert run(llm) == run(llm) == plain("llama-mini")
    assert llm.readback()["algorithm"] == traits.name == "ODD"
    relay = llm.loop.executor.relay
    assert type(relay) is CountingRelay and relay.kept.sum() > 30
    assert len(llm.loop.executor.kv.full.pools) == 2 and llm.loop.scheduler.cache.key_span == 2
    assert llm.counters["spec.drafted"] > 0 and llm.drafter_error is None


def test_an_algorithms_own_check_refuses_before_anything_is_resolved(zoo, registered):
    registered(ODD, Odd, check=few_steps)
    with pytest.raises(ConfigError, match=r"^ODD does not like 5 steps on a LlamaForCausalLM; ask for 4$"):
        LLM(EngineConfig("llama-mini", "odd", speculative_num_steps=5), zoo)


def test_only_a_trait_opens_the_targets_verify_shape_to_a_draft(zoo, registered):
    registered(replace(ODD, name="SHY", target_verify_for_draft=False), Odd)
    with pytest.raises(ConfigError, match=r"^the draft of SHY may not use the target's verify shape; its traits need"):
        LLM(EngineConfig("llama-mini", "SHY", speculative_num_steps=3), zoo)


def pretending(zoo, registered, drafter, **more: object) -> LLM:
    registered(TRAITS, drafter)
    return LLM(EngineConfig("llama-mini", "PRETENDER", **SHAPE, **more), zoo)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_an_honest_registered_drafter_is_guarded_and_left_alone(zoo, plain, registered, version):
    llm = pretending(zoo, registered, Pretender, spec_version=version)
    assert run(llm) == plain("llama-mini")
    assert llm.loop.executor.guard is not None and llm.drafter_error is None
    assert llm.loop.executor.relay.carried["score"].max() > 5


@pytest.mark.parametrize(("liar", "lie"), ROW_LIES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_lie_about_a_row_costs_its_request_alone(zoo, plain, registered, liar, lie):
    llm = pretending(zoo, registered, liar, spec_version="v2", **STRICT)
    first, *others = llm.generate(PROMPTS, PARAMS)
    truth = plain("llama-mini")
    assert [output.output_ids for output in others] == truth[1:]
    assert first.finish.reason == "error" and first.output_ids == truth[0][: len(first.output_ids)]
    assert len(first.output_ids) <= 1
    reason = first.meta_info["finish_reason"]
    assert reason["message"].startswith("the drafter of PRETENDER ") and lie in reason["message"]
    assert reason["message"].endswith("; the request was stopped, and its tokens so far are exact")
    assert all("message" not in output.meta_info["finish_reason"] for output in others)
    assert llm.drafter_error is None
    ledger = llm.loop.scheduler.ledger
    assert not ledger.counts.held


# Most of them are seen the same way, so a few stand for them in every run.
OFTEN = ("NoTree", "Exits", "Recurses", "SetsDtype", "OwnTensors")
BATCH = [
    pytest.param(liar, lie, marks=() if liar.__name__ in OFTEN else pytest.mark.nightly)
    for liar, lie in BATCH_LIES.items()
]


@pytest.mark.parametrize(("liar", "lie"), BATCH, ids=lambda value: getattr(value, "__name__", ""))
def test_a_lie_about_the_batch_puts_the_drafter_in_quarantine(zoo, plain, registered, liar, lie):
    """At lag 1: a round of the old width may still be in flight."""
    llm = pretending(zoo, registered, liar, spec_version="v2")
    message = f"the drafter of PRETENDER {lie}; it is not called again, and rounds continue without drafts"
    with pytest.warns(RuntimeWarning) as caught:
        outputs = llm.generate(PROMPTS, PARAMS)
    assert [str(warning.message) for warning in caught] == [message]
    assert [output.output_ids for output in outputs] == plain("llama-mini")
    assert llm.drafter_error == llm.readback()["drafter_error"] == message
    assert all(output.meta_info["drafter_error"] == message for output in outputs)
    drafted = llm.counters["spec.drafted"]
    assert run(llm) == plain("llama-mini") and llm.counters["spec.drafted"] == drafted


def test_writes_of_a_drafter_into_its_inputs_have_no_effect(zoo, plain, registered):
    llm = pretending(zoo, registered, misbehaving_drafter.WritesEverything, spec_version="v2")
    assert run(llm) == run(llm) == plain("llama-mini")
    assert llm.drafter_error is None and llm.counters["spec.drafted"] > 0
    forget_algorithm("PRETENDER")
    honest = pretending(zoo, register_algorithm, Pretender, spec_version="v2", **STRICT)
    assert run(honest) == plain("llama-mini") and honest.drafter_error is None


def test_an_interrupt_within_a_hook_stays_an_interrupt(zoo, plain, registered):
    class Interrupted(Pretender):
        rounds = 0

        def propose(self, batch, relay):
            self.rounds += 1
            if self.rounds == 3:
                raise KeyboardInterrupt
            return super().propose(batch, relay)

    llm = pretending(zoo, registered, Interrupted, spec_version="v2")
    with pytest.raises(KeyboardInterrupt):
        run(llm)
    assert run(llm) == plain("llama-mini") and llm.drafter_error is None


class WritesChain(Odd):
    """It may write to its own tree, even if a batch of one makes it a whole row of a table."""

    def propose(self, batch, relay):
        tree = super().propose(batch, relay)
        for numbers in (tree.parents, tree.depths):
            numbers.fill_(1)
        return tree


def test_a_chain_is_its_drafters_own(zoo, plain, registered):
    registered(ODD, WritesChain)
    llm = LLM(EngineConfig("llama-mini", "odd", speculative_num_steps=3), zoo)
    assert llm.generate(PROMPTS[:1], PARAMS[:1])[0].finish.reason == "error"
    forget_algorithm("ODD")
    register_algorithm(ODD, Odd)
    honest = LLM(EngineConfig("llama-mini", "odd", speculative_num_steps=3, **STRICT), zoo)
    assert honest.generate(PROMPTS[:1], PARAMS[:1])[0].output_ids == plain("llama-mini")[0]
    assert honest.drafter_error is None


def test_an_engines_own_bug_passes_through_a_drafter(zoo, registered):
    llm = pretending(zoo, registered, raiser("propose", KernelError("two rows share a slot")))
    with pytest.raises(KernelError, match="two rows share a slot"):
        run(llm)


def test_a_built_in_drafter_that_raises_is_a_bug_of_ours(zoo, monkeypatch):
    llm = LLM(EngineConfig("llama-mini", "NGRAM", **STRICT, speculative_num_steps=3), zoo)
    monkeypatch.setattr(llm.loop.executor.drafter, "propose", lambda batch, relay: 1 // 0)
    (stopped,) = {out.finish for out in llm.generate(["one prompt", "another"])}
    assert stopped.reason == "error" and "raise ZeroDivisionError" in stopped.message
    assert llm.drafter_error is None


def test_a_host_read_costs_a_cpu_engine_nothing(zoo, plain, registered):
    llm = pretending(zoo, registered, READERS["Tensor.tolist"], spec_version="v2")
    assert run(llm) == plain("llama-mini") and llm.drafter_error is None
