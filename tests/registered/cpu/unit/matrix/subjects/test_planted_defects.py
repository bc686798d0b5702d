"""Toy subjects with one defect each: every one is red, by the gate that is meant to see it, in the round at fault."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest import mock

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.registry import applied_gates
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects.in_process import Conversation, ReferenceSubject
from specmatrix.matrix.subjects.protocol import Answer, Capability, EngineCommand, Profile, RunningEngine
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.schema import CellResult
from tests.support.tiny_subject import ReplayEngine, ReplaySubject

ALONE = "eagle3.s3.k1"
DIFFERS = r"\d of \d requests differ from plain decoding, first q\d+ at token \d+: .*, in verify round "
RATIO = r"acceptance length {}, .*; first q\d+ in verify round {}"


class Shallow(ReplaySubject):
    """Drafts less deeply than it is asked to, and says so."""

    def start(self, command: EngineCommand) -> RunningEngine:
        return ShallowEngine(replace(command, flags={**command.flags, "depth": 2}), self.fault)


class ShallowEngine(ReplayEngine):
    resolved = {"num_steps": 2, "topk": 1, "num_draft_tokens": 3}  # noqa: RUF012 - of the protocol


def judged(fault: str, cell: str, seed: int = 0, kind: Callable[[str], ReplaySubject] = ReplaySubject) -> CellResult:
    subject = kind(fault)
    runner = Runner(subject, seed, gates=applied_gates(subject.profile).gates)
    try:
        return runner.run_cell(Cell.from_id(cell))
    finally:
        runner.shut_down()


@pytest.mark.parametrize(
    ("fault", "cell", "gate", "message"),
    [
        ("checks stop strings at a round's end", ".stop_string", "finish", r"q\d+ has \d+ .*, in verify round \d+"),
        ("forgets stop strings over two rounds", ".stop_string", "finish", r"q\d+ has \d+ .*, in verify round \d+"),
        ("checks stop tokens at a round's end", ".stop_token", "finish", r"q\d+ has \d+ .*, in verify round \d+"),
        ("checks the limit at a round's end", ".length", "finish", "q5 has 40 .* length after 37, in verify round 12"),
        ("decodes each round alone", "", "finish", r"q\d+ has a text that ends in .*"),
        ("ignores aborts", ".pair.abort_running", "finish", "no request had an abort, which q6 must have by .*"),
        ("calls a stop length", ".stop_string", "finish", r"q5 finished by length .*; its tokens imply stop .*"),
        (
            "answers from a cache",
            ".pair",
            "lossless",
            r"1 of 2 requests differ .*, first q6 at token 0: .*, in the prefill",
        ),
        ("baseline differs", "", "oracle", r"plain decoding of 1 requests differs .*, first q5 at token 4: .*"),
        ("baseline differs", "", "lossless", DIFFERS + "2"),
        ("keeps the rejected draft", "", "lossless", DIFFERS + "1"),
        ("repeats the root", "", "lossless", DIFFERS + "2"),
        ("swaps the last two", "", "lossless", DIFFERS + "2"),
        ("takes the neighbour's bonus", ".pair", "lossless", DIFFERS + "2"),
        ("never accepts", "", "acceptance", RATIO.format("1.000", "2")),
        ("ruins drafts after 4 rounds", "", "acceptance", RATIO.format(r"1\.\d+", "5")),
        ("knows the text", "", "acceptance", RATIO.format("4.000", "1")),
    ],
)
def test_a_planted_defect_is_red_by_its_gate_in_its_round(fault: str, cell: str, gate: str, message: str):
    found = judged(fault, ALONE + cell)
    outcome = found.gate(gate)
    assert outcome is not None and outcome.state != "PASS" and found.state == outcome.state != "PASS"
    assert re.fullmatch(message, outcome.message), outcome.message


@pytest.mark.parametrize("seed", [0, 1, 2, 5, 8])
def test_a_stop_inside_a_round_is_forced_with_every_seed(seed: int):
    """Without, an engine that looks at stops only after whole rounds passes."""
    for finish in ("stop_string", "stop_token", "length"):
        for fault in ("", f"checks {finish.replace('_', ' ')}s at a round's end".replace("lengths", "the limit")):
            assert (judged(fault, f"{ALONE}.{finish}", seed).state == "PASS") is (not fault), (finish, fault)


@pytest.mark.parametrize(("fault", "what"), [("never accepts", "accepts every"), ("knows the text", "rejects a")])
def test_equal_texts_prove_nothing_if_no_round_accepted_or_rejected(fault: str, what: str):
    outcome = judged(fault, ALONE).gate("lossless")
    assert outcome is not None and outcome.state == "NOT MEASURED"
    assert re.fullmatch(
        rf"no request had a verify round that {what} draft, which q\d+ must have by the oracle's text", outcome.message
    )


def test_rounds_that_are_a_subjects_own_need_not_be_the_oracles():
    own = replace(ReplaySubject.profile, excluded={"acceptance": "it chooses its own depth"})
    outcome = judged("never accepts", ALONE, kind=partial(ReplaySubject, profile=own)).gate("lossless")
    assert outcome is not None and outcome.state == "PASS", outcome.message


@pytest.mark.parametrize(("fault", "state"), [("", "PASS"), ("never accepts", "NOT MEASURED")])
def test_full_rounds_are_those_of_the_depth_that_the_engine_reports(fault: str, state: str):
    outcome = judged(fault, ALONE, kind=Shallow).gate("lossless")
    assert outcome is not None and outcome.state == state, outcome.message


Send = Callable[[Sequence[RequestSpec]], list[Answer]]
Change = Callable[[Send, Sequence[RequestSpec]], list[Answer]]
# What the reference engine shows and no other subject does, and the flags that this one has not.
OWN: Final = ("resolution", "readback", "counters", "journal", "order", "work", "memory", "resources", "trace", "ranks")
LENGTHS, STOPS = "eagle3.s3.m4.mixed_lengths.length", "eagle3.s3.k4.n8.v2.p16.mixed_lengths.rules.stops"
TURNS, SEEDED = "eagle3.s3.k1.pair.stream", "eagle3.s3.k1.mixed_lengths.temperature.length"


class Changed(ReferenceSubject):
    """The reference engine as another subject. change: of what it is sent and answers with a drafter."""

    profile = Profile(frozenset(Capability) - {Capability(name) for name in OWN}, in_process=True)

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def start(self, command: EngineCommand) -> RunningEngine:
        engine: Any = super().start(command)
        if command.flags["speculative_algorithm"] not in (None, "NONE"):
            engine.generate = partial(self.change, engine.generate)
            engine.counters = dict if self.change is uncounted else engine.counters
        return engine


def uncounted(send: Send, asks: Sequence[RequestSpec]) -> list[Answer]:
    """Answers of an engine that counts no draft."""
    return send(asks)


def each(change: Callable[[Answer], Answer]) -> Change:
    return lambda send, asks: [change(answer) for answer in send(asks)]


def of_asks(change: Callable[[RequestSpec], RequestSpec]) -> Change:
    return lambda send, asks: send([change(one) for one in asks])


def told(one: Answer, **counts: int) -> Answer:
    """The answer with other metrics."""
    return replace(
        one, cached_tokens=counts.get("cached_tokens", one.cached_tokens), meta_info={**one.meta_info, **counts}
    )


def one_short(one: Answer) -> Answer:
    """Without the last token that its length allows, if its verify round has more."""
    crossed = one.finish == "length" and 1 + sum(one.accept_lengths) > len(one.output_ids)
    kept = one.output_ids[:-1] if crossed else one.output_ids
    return replace(told(one, completion_tokens=len(kept)), output_ids=kept)


def bonus_is_a_draft(one: Answer) -> Answer:
    return told(one, spec_num_correct_drafts=one.meta_info["spec_num_correct_drafts"] + len(one.accept_lengths))


def forgetful(send: Send, asks: Sequence[RequestSpec]) -> list[Answer]:
    """Sends a turn with its history, whose last token it forgets."""
    turns = {one.name: replace(one.session, resend=True) for one in asks if one.session and not one.refused}
    history = Conversation._history  # noqa: SLF001 - what the engine itself would do
    with mock.patch.object(Conversation, "_history", lambda self, here: history(self, here)[:-1]):
        return send([replace(one, session=turns.get(one.name, one.session)) for one in asks])


ALL_CACHED = (
    r"(q\d+\.again) reports (\d+) of \2 prompt tokens as cached; none is left, or no other text begins with them"
)
FORGOTTEN = r"the prompt of q5\.turn2 is not its history followed by its own tokens"


@pytest.mark.parametrize(
    ("change", "cell", "gate", "message"),
    [
        (each(told), LENGTHS, "finish", ""),
        (each(told), STOPS, "finish", ""),
        (each(told), TURNS, "session", ""),
        (each(told), SEEDED, "lossless", ""),
        (uncounted, LENGTHS, "claimed_capabilities", r"the subject claims totals, but counts no draft .*"),
        (
            of_asks(lambda r: replace(r, seed=7)),
            SEEDED,
            "lossless",
            r"\d of 5 requests differ from plain decoding, first q5 at token \d: .*, in .*",
        ),
        (
            each(lambda a: replace(a, logprobs=(*a.logprobs[1:], *a.logprobs[:1]))),
            STOPS,
            "lossless",
            r"a log-probability of \S+ differs from the baseline's by .* nats, at token \d+, in .*",
        ),
        (each(one_short), LENGTHS, "finish", "q5 finished by length; its tokens imply no finish yet"),
        (each(bonus_is_a_draft), LENGTHS, "identities", r"q5 reports spec_accept_rate [\d.]+; its counts give [\d.]+"),
        (each(lambda a: told(a, cached_tokens=a.cached_tokens + bool(a.cached_tokens))), LENGTHS, "finish", ALL_CACHED),
        (
            of_asks(lambda r: replace(r, min_new_tokens=max(0, r.min_new_tokens - 3))),
            STOPS,
            "finish",
            r"q5 has stop token 1 among its first 41 tokens, in verify round \d+ under min_new_tokens, .*",
        ),
        (
            each(lambda a: replace(a, further=tuple(replace(a, further=()) for _ in a.further))),
            STOPS,
            "lossless",
            r"\d of \d+ requests differ from plain decoding, first q\d+#1 at token 0: .*, in the prefill .*",
        ),
        (forgetful, TURNS, "session", FORGOTTEN),
        (each(lambda a: told(a, prompt_tokens=len(a.prompt_ids) - ("turn2" in a.name))), TURNS, "session", FORGOTTEN),
    ],
)
def test_a_defect_of_metrics_lengths_completions_and_turns_names_its_request(
    change: Change, cell: str, gate: str, message: str
):
    subject = Changed(change)
    runner = Runner(subject, 0, gates=applied_gates(subject.profile).gates)
    try:
        found = runner.run_cell(Cell.from_id(cell))
    finally:
        runner.shut_down()
    outcome = found.gate(gate)
    assert outcome is not None and found.state == outcome.state == ("FAIL" if message else "PASS"), found.error
    assert re.fullmatch(message, outcome.message), outcome.message
