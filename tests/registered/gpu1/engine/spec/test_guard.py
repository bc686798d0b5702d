"""On a GPU: invalid output of a registered drafter is named, other requests keep their tokens, and no launch waits."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from specmatrix import HOME
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.plugin import forget_algorithm, register_algorithm
from specmatrix.matrix.conformance.inspector import inspect_drafter
from tests.support import misbehaving_drafter

pytestmark = pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")

ZOO = HOME / "matrix" / "zoo" / "checkpoints"
PROMPTS = (
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "Question: Eli had 75 keys.",
)
PARAMS = [
    SamplingParams(max_new_tokens=24),
    SamplingParams(max_new_tokens=20, temperature=0.9, seed=3, ignore_eos=True),
    SamplingParams(max_new_tokens=17, temperature=0.6, top_k=20, seed=4, return_logprob=True),
]
# What only tensors of a device can do.
COPIES = {
    misbehaving_drafter.reader("ToDevice", lambda t: t.to(torch.device("cpu"))): "a copy to the CPU",
    misbehaving_drafter.reader("Copy", lambda t: torch.zeros_like(t, device="cpu").copy_(t)): "a copy to the CPU",
}
SEEN = {liar: name for name, liar in misbehaving_drafter.READERS.items() if name != "Tensor.numpy"} | COPIES
WRONG = {
    **{liar: lie.replace("on cpu", "on cuda:0") for liar, lie in misbehaving_drafter.BATCH_LIES.items()},
    # These raise before anything is read.
    misbehaving_drafter.READERS["Tensor.numpy"]: "raised TypeError in propose",
    misbehaving_drafter.KeepsNumpy: "raised ",
}


def start_engine(algorithm: str = "NONE", **more: object) -> LLM:
    asked = {"device": "cuda", "dtype": "float32", "enable_deterministic_inference": True, "kv_stamps": True}
    shape = misbehaving_drafter.SHAPE if algorithm != "NONE" else {}
    return LLM(EngineConfig("llama-mini", algorithm, **{**asked, **shape, **more}), lambda name: ZOO / name)


@cache
def plain() -> list[tuple[int, ...]]:
    return [output.output_ids for output in start_engine().generate(PROMPTS, PARAMS)]


@pytest.fixture
def pretending():
    """An engine of the algorithm PRETENDER with a given drafter; it is unregistered after the test."""

    def start(drafter, **more: object) -> LLM:
        register_algorithm(misbehaving_drafter.TRAITS, drafter)
        return start_engine("PRETENDER", **more)

    yield start
    forget_algorithm("PRETENDER")


def at_rest(llm: LLM) -> None:
    ledger = llm.loop.scheduler.ledger
    assert not ledger.accounts and not ledger.counts.held
    assert llm.counters["stamp.checked"] > 0 and llm.counters["stamp.wrong"] == 0


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_guarded_launch_waits_for_nothing(pretending, version):
    llm = pretending(misbehaving_drafter.Pretender, spec_version=version)
    assert [output.output_ids for output in llm.generate(PROMPTS, PARAMS)] == plain()
    unguarded = llm.loop.executor.launch

    def strict(plan):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return unguarded(plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    llm.loop.executor.launch = strict
    assert [output.output_ids for output in llm.generate(PROMPTS, PARAMS)] == plain()
    assert llm.drafter_error is None and llm.counters["spec.drafted"] > 0
    at_rest(llm)


@pytest.mark.parametrize(
    ("liar", "lie"), misbehaving_drafter.ROW_LIES.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_lie_about_a_row_costs_its_request_alone(pretending, liar, lie):
    llm = pretending(liar, spec_version="v2", strict_memory=2)
    first, *others = llm.generate(PROMPTS, PARAMS)
    assert [output.output_ids for output in others] == plain()[1:]
    assert first.finish.reason == "error" and lie in first.meta_info["finish_reason"]["message"]
    assert first.output_ids == plain()[0][: len(first.output_ids)] and len(first.output_ids) <= 1
    assert llm.drafter_error is None
    at_rest(llm)


@pytest.mark.parametrize(("liar", "lie"), WRONG.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_drafter_that_returns_a_bad_batch_reads_or_raises_is_disabled(pretending, liar, lie):
    """At lag 1: a round of the old width may still be in flight."""
    llm = pretending(liar, spec_version="v2")
    with pytest.warns(RuntimeWarning) as caught:
        outputs = llm.generate(PROMPTS, PARAMS)
    (message,) = {str(warning.message) for warning in caught}
    assert message.startswith(f"the drafter of PRETENDER {lie}")
    assert message.endswith("; it is not called again, and rounds continue without drafts")
    assert [output.output_ids for output in outputs] == plain()
    assert llm.drafter_error == llm.readback()["drafter_error"] == message
    at_rest(llm)


def test_writes_of_a_drafter_into_its_inputs_have_no_effect(pretending):
    llm = pretending(misbehaving_drafter.WritesEverything, spec_version="v2")
    for _ in range(3):
        assert [output.output_ids for output in llm.generate(PROMPTS, PARAMS)] == plain()
    assert llm.drafter_error is None and llm.counters["spec.drafted"] > 0
    at_rest(llm)


def test_a_host_read_costs_no_tokens(pretending):
    llm = pretending(misbehaving_drafter.READERS["Tensor.tolist"], spec_version="v2")
    assert [output.output_ids for output in llm.generate(PROMPTS, PARAMS)] == plain()
    assert llm.drafter_error is None and llm.counters["spec.drafted"] > 0


@pytest.mark.parametrize(
    ("writer", "written"),
    [each for each in misbehaving_drafter.WRITERS.items() if each[0] is not misbehaving_drafter.KeepsNumpy],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_inspected_write_is_reported(pretending, writer, written):
    llm = pretending(writer, spec_version="v2")
    inspected = inspect_drafter(llm)
    assert inspected is not None
    llm.generate(PROMPTS, PARAMS)
    hook, *names = written
    assert inspected.violations == tuple(f"the drafter of PRETENDER wrote into {name} in {hook}" for name in names)


@pytest.mark.parametrize(("liar", "name"), SEEN.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_an_inspected_host_read_is_reported(pretending, liar, name):
    llm = pretending(liar, spec_version="v2")
    inspected = inspect_drafter(llm)
    assert inspected is not None
    llm.generate(PROMPTS, PARAMS)
    assert inspected.violations == (
        f"the drafter of PRETENDER read a tensor on the host ({name}) in propose without the trait reads_host",
    )


def test_an_inspected_round_is_replayed_without_a_violation():
    llm = start_engine("EAGLE3", speculative_draft_model_path="llama-mini-eagle3", strict_memory=2)
    inspected = inspect_drafter(llm)
    assert inspected is not None
    for _ in range(3):
        assert [output.output_ids for output in llm.generate(PROMPTS, PARAMS)] == plain()
    assert llm.counters["graph.replayed"] > 0 and llm.counters["graph.waited"] == 0
    assert llm.drafter_error is None and inspected.violations == ()


def test_a_write_in_a_replayed_round_is_reported(monkeypatch):
    llm = start_engine("EAGLE3", speculative_draft_model_path="llama-mini-eagle3", strict_memory=2)
    inspected, drafter = inspect_drafter(llm), llm.loop.executor.drafter
    propose = drafter.propose
    # Adds nothing until a replay finds a 1 there.
    more = torch.zeros((), dtype=torch.int64, device="cuda")

    def writes(batch, relay):
        tree = propose(batch, relay)
        batch.start.add_(more)
        return tree

    monkeypatch.setattr(drafter, "propose", writes)
    # One request: a text that the write changes brings no batch of another size, whose first round is not replayed.
    llm.generate(PROMPTS[:1], PARAMS[:1])
    llm.generate(PROMPTS[:1], PARAMS[:1])
    assert inspected is not None and inspected.violations == () and llm.counters["graph.replayed"] > 0
    eager = llm.counters["graph.eager"]
    more.fill_(1)
    llm.generate(PROMPTS[:1], PARAMS[:1])
    assert llm.counters["graph.eager"] == eager
    assert inspected.violations == ("the drafter of EAGLE3 wrote into batch.start in propose",)
