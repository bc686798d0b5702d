"""Adaptive steps end to end: graphs of each depth, and files that cannot be read."""

from __future__ import annotations

import json
import re

import pytest
import torch

from specmatrix import HOME
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.step import padded
from specmatrix.engine.device.cuda_graphs import CudaGraphs
from specmatrix.errors import ConfigError

ZOO = HOME / "matrix" / "zoo" / "checkpoints"
PROMPTS = tuple(
    f"Question: {name} has {many} {things} and buys {more}. How many {things} has {name}?\nAnswer:"
    for things in ("pens", "coins", "pears", "books")
    for name, many, more in (("Ann", 3, 4), ("Bo", 17, 25), ("Cy", 40, 9), ("Di", 8, 61))
    for many in (many, many + 30)
)
# Every second round decides, on half of its own mean: slots move within a few rounds.
QUICK = {
    "ema_alpha": 0.5,
    "update_interval": 2,
    "warmup_batches": 2,
    "1": {"candidate_steps": [1, 3, 7]},
    "8": {"candidate_steps": [1, 2, 5], "down_hysteresis": 0},
    "32": {"candidate_steps": [1]},
}
# Lengths of the first request, of those that make eight of it, and of those that make thirty-two.
LENGTHS = (90, *(44,) * 7, *(8,) * 24)


def start_engine(config: str = json.dumps(QUICK)) -> LLM:
    asked = {
        "context_length": 256,
        "max_total_tokens": 3201,
        "strict_memory": 1,
        "page_size": 3,
        "enable_deterministic_inference": True,
        "speculative_adaptive": True,
        "speculative_adaptive_config": config,
    }
    return LLM(EngineConfig("llama-mini", "EAGLE3", "llama-mini-eagle3", **asked), lambda name: ZOO / name)


def params(tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=tokens, ignore_eos=True)


def rising_and_falling(llm: LLM) -> list[tuple[int, ...]]:
    """Batches of 1, 8, 32, 8 and 1: more requests join while the first ones run, the later ones end first."""
    rids = []
    for upto in (1, 8, 32):
        while len(rids) < upto:
            rids.append(llm.add(PROMPTS[len(rids)], params(LENGTHS[len(rids)])))
        for _ in range(6 if upto < 32 else 10_000):
            if not llm.step():
                break
    return [llm.take(rid).output_ids for rid in rids]


POLICY = """
from specmatrix.engine.core.draft.throughput import Decision

class Mine:
    def __init__(self, slots, settings, steps):
        self.depths = [slots[0].candidate_steps[place] for place in settings["turns"]]

    def choose(self, slot, batch_size):
        self.depths.append(self.depths.pop(0))
        return Decision(self.depths[-1], "up")

    def observe(self, slot, width, correct):
        return Decision(self.depths[-1], average=0.5)

class Deaf:
    def __init__(self, *given): ...
    choose = Mine.choose
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with three adaptive policies."""
    place = tmp_path / "mine-1.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n", encoding="utf-8")
    rows = "[specmatrix.adaptive_policies]\nturns = my_policies:Mine\ndeaf = my_policies:Deaf\nlost = my_policies:No\n"
    (place / "entry_points.txt").write_text(rows, encoding="utf-8")
    (tmp_path / "my_policies.py").write_text(POLICY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return place


def of_policy(name: str, **settings) -> str:  # noqa: ANN003 - JSON
    return json.dumps({"strategy": name, **settings, "1": {"candidate_steps": [1, 2, 5]}})


@pytest.mark.usefixtures("installed")
def test_an_installed_policy_chooses_every_depth():
    llm = start_engine(of_policy("turns", turns=[0, 2, 1]))
    (answer,) = llm.generate([PROMPTS[0]], params(40))
    seen = llm.readback()
    assert [width for _, width in llm.loop.scheduler.steps.rounds][:6] == [2, 6, 3, 2, 6, 3]
    assert seen["adaptive_slots"][0] | {"turns": [0, 2, 1], "strategy": "turns"} == seen["adaptive_slots"][0]
    assert {record["ema"] for record in seen["adaptive"]["trace"]} == {0.5}
    assert llm.counters["adaptive.switched_up"] == seen["adaptive"]["activated"]
    assert answer.output_ids == start_engine().generate([PROMPTS[0]], params(40))[0].output_ids


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("other", "strategy must be one of 'ema', 'throughput_aware', 'deaf', 'lost', 'turns', got \"other\""),
        ("turns", "adaptive policy turns (my_policies:Mine) cannot be made: KeyError: 'turns'"),
        ("lost", "adaptive policy lost (my_policies:No) cannot be made: AttributeError: "),
        ("deaf", "adaptive policy deaf (my_policies:Deaf) has no observe; it needs choose, observe"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_a_policy_that_cannot_be_used_is_one_sentence(name, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        start_engine(of_policy(name))


def test_a_policy_with_a_built_in_name_is_refused(installed):
    (installed / "entry_points.txt").write_text("[specmatrix.adaptive_policies]\nema = my_policies:Mine\n")
    with pytest.raises(ConfigError, match=r"^adaptive policy 'ema' of my_policies:Mine exists already; rename it$"):
        start_engine()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "cannot be read (No such file or directory); pass a JSON file"),
        (lambda path: path.mkdir(), "cannot be read (Is a directory); pass a JSON file"),
        (lambda path: path.write_bytes(b"\xff{}"), "cannot be read (it is not UTF-8 text); pass a JSON file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, make, sentence):
    path = tmp_path / "slots.json"
    make(path)
    with pytest.raises(ConfigError, match=re.escape(f"speculative_adaptive_config {path} {sentence}")):
        start_engine(config=str(path))


def test_a_depths_bundle_holds_the_batches_of_the_slots_that_reach_it():
    llm = start_engine()
    executor = llm.loop.executor
    executor.run.graphs = CudaGraphs(32, torch.device("cpu"), llm.loop.counters)
    assert rising_and_falling(llm) == rising_and_falling(start_engine())
    reached = {(padded(batch), width) for batch, width in llm.loop.scheduler.steps.rounds}
    bundles = dict(executor.graphs.bundles)
    assert {(one.batch, width) for width, bundle in bundles.items() for one in bundle.graphs} == reached
    assert {one.width for width, bundle in bundles.items() for one in bundle.graphs if one.width != width} == set()
    assert len(bundles) > 2 and max(one.batch for one in bundles[8].graphs) < 8
