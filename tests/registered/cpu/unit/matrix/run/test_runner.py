"""Records of cells: states, shared engines, baselines, and subjects that crash, lack something or refuse."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.errors import LedgerError
from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.gates.claimed_capabilities import ClaimedCapabilitiesGate
from specmatrix.matrix.gates.gate import Gate, Outcome, State
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.gates.oracle import OracleGate
from specmatrix.matrix.gates.registry import applied_gates
from specmatrix.matrix.run.runner import UNJUDGED, Runner, known_shape, reference_runner, subject_runner
from specmatrix.matrix.subjects import protocol
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import Oracle
from specmatrix.reports.schema import Waiver, WaiverRule
from specmatrix.reports.store import cell_from_json, cell_to_json

PROMPT = "Question: Tom has 12 apples and buys 15 more. How many apples does he have?\nAnswer:"


def two_requests(cell: Cell, seed: int) -> tuple[RequestSpec, ...]:
    after = 3 if cell.abort == "running" else None
    return (RequestSpec("a", PROMPT, 12), RequestSpec("b", PROMPT + " Now", 9, abort_after=after))


class Counted(ReferenceSubject):
    """The reference engine with a count of its starts."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[EngineConfig] = []

    def start_engine(self, config: EngineConfig) -> ReferenceEngine:
        self.starts.append(config)
        return super().start_engine(config)


class CrashingEngine(ReferenceEngine):
    error: Exception = RuntimeError("a wire came loose")

    def generate(self, requests: Sequence[RequestSpec]) -> list[protocol.Answer]:
        raise self.error


class Crashing(ReferenceSubject):
    """Its first engine, or the first without a drafter, crashes at its first request; the others work."""

    def __init__(self, error: Exception, plain: bool = False) -> None:
        super().__init__()
        self.error: Exception | None = error
        self.plain = plain

    def start_engine(self, config: EngineConfig) -> ReferenceEngine:
        engine = super().start_engine(config)
        if self.error is not None and (config.speculative_algorithm == "NONE") >= self.plain:
            broken = CrashingEngine(engine.llm, engine.clock)
            broken.error, self.error = self.error, None
            return broken
        return engine


def runner(subject: protocol.Subject, gates: Sequence[Gate] = (LedgerGate(),), seed: int = 3) -> Runner:
    return Runner(subject, seed, two_requests, gates)


def test_a_record_holds_the_requested_and_the_resolved_configuration():
    cell = Cell.from_id("eagle3.s5.k1.n16.p4.pair.length")
    record = runner(ReferenceSubject()).run_cell(cell)
    assert (record.state, record.error) == ("PASS", None)
    assert record.id == cell.id and record.axes == cell.values and record.expect == "rewritten"
    assert record.start.requested["page_size"] == 4 and record.start.requested["kv_stamps"] is True
    assert record.start.resolved is not None and record.start.resolved["num_draft_tokens"] == 6
    assert [(r.field, r.asked, r.got) for r in record.start.rewrites] == [("speculative_num_draft_tokens", 16, 6)]
    assert "reasons" not in record.start.resolved and record.start.reasons
    assert record.evidence["spec.drafted"] > 0 < record.seconds
    assert record.repro.startswith("specmatrix run --cells 'eagle3.s5.k1.n16.p4.pair.length' --seed 3 --out ")
    assert cell_from_json(cell_to_json(record)) == record


def test_cells_of_one_start_share_an_engine_and_baselines():
    subject = Counted()
    cells = [Cell.from_id(text) for text in ("eagle3.pair", "eagle3.pair.length", "eagle3.pair.abort_running")]
    first, second, third = records = list(map(runner(subject, (LosslessGate(),)).run_cell, cells))
    assert [record.id for record in records] == [cell.id for cell in cells]
    assert [config.speculative_algorithm for config in subject.starts] == ["EAGLE3", "NONE"]
    assert [record.engine_starts for record in records] == [2, 0, 0]
    # The second finds the prompts in the prefix cache; what it drafted is its own alone.
    assert first.evidence["prefix.hit"] == 0 < second.evidence["prefix.hit"]
    assert second.evidence["spec.drafted"] < 2 * first.evidence["spec.drafted"] and third.state == "PASS"


def test_plain_engines_serve_every_workload_and_plain_drafters_are_closed():
    subject = Counted()
    made = Runner(subject, 3, lambda cell, seed: (RequestSpec("a", PROMPT, 9 if cell.finish == "eos" else 12),), ())
    for cell in ("eagle3.pair", "eagle3.pair.length", "eagle3.pair.stream", "eagle3.pair.stream.length"):
        made.run_cell(Cell.from_id(cell))
    # The cells' own, plain decoding, and the drafter of the two cells with turns once for each of their workloads.
    assert [config.speculative_algorithm for config in subject.starts] == ["EAGLE3", "NONE", "EAGLE3", "EAGLE3"]
    assert [start.id for start, _ in made.baselines.engines] == ["none.v1.nocache"]


def test_each_model_is_compared_with_its_own_plain_decoding():
    subject = Counted()
    cells = [Cell.from_id(text) for text in ("eagle3.pair", "nextn.deepseek.pair", "none.qwen3.nocache.pair")]
    made = runner(subject, (LosslessGate(oracle=lambda target: Oracle((), {}, ())),))
    assert {made.run_cell(cell).state for cell in (*cells, *cells)} == {"PASS"}
    plain = [config.model_path for config in subject.starts if config.spec_version == "v1"]
    assert plain == ["llama-mini", "deepseek-mini", "qwen3-mini"], "once each, whoever came before"


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (RuntimeError("a wire came loose"), "INFRA", "RuntimeError: a wire came loose, in generate (test_runner.py:"),
        (LedgerError("page 3 has two owners"), "FAIL", "LedgerError: page 3 has two owners"),
    ],
)
def test_a_crash_is_infra_or_a_verdict_and_the_next_cell_gets_a_fresh_start(error: Exception, state: str, text: str):
    cells = [Cell.from_id("eagle3.pair"), Cell.from_id("eagle3.pair.length")]
    lost, fine = map(runner(Crashing(error)).run_cell, cells)
    assert (lost.state, lost.gates, fine.state) == (state, (), "PASS")
    assert lost.error is not None and lost.error.startswith(text)
    plain = runner(Crashing(error, plain=True)).run_cell(cells[0])
    assert plain.error is not None and plain.error.startswith(f"baseline: {text}")


def test_a_counter_that_fell_below_the_cells_start_is_none_in_its_record(monkeypatch):
    monkeypatch.setattr("specmatrix.matrix.run.runner.crashed_request", lambda *_: None)
    monkeypatch.setattr(CrashingEngine, "unfinished", lambda self: ("q1",))
    monkeypatch.setattr(CrashingEngine, "counters", lambda self: {"decode.round": -3})
    lost = runner(Crashing(LedgerError("page 3 has two owners"))).run_cell(Cell.from_id("eagle3.pair"))
    assert lost.state == "FAIL" and lost.evidence == {"decode.round": 0}


class Expired(BaseException):
    """As a test's time limit raises."""


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", [TimeoutError, Expired])
def test_a_time_limit_is_no_crash_and_leaves_its_engine_to_nobody(monkeypatch, kind: type[BaseException], plain: bool):
    def expire(*_: object) -> None:
        raise kind("time is up")

    before = signal.signal(signal.SIGALRM, expire)
    monkeypatch.setattr(CrashingEngine, "generate", lambda *_: signal.raise_signal(signal.SIGALRM))
    made = runner(Crashing(RuntimeError(), plain))
    try:
        with pytest.raises(kind, match="time is up"):
            made.run_cell(Cell.from_id("eagle3.pair"))
        assert made.run_cell(Cell.from_id("eagle3.pair")).state == "PASS"
    finally:
        signal.signal(signal.SIGALRM, before)


class Other(protocol.Subject):
    """Another engine, which answers each request with its place in the batch. plain: what it makes of a cell
    without a drafter, None for a command; error: of its first answers."""

    name = "other"
    profile = protocol.Profile(frozenset({protocol.Capability.TOKEN_IDS}), in_process=True)

    def __init__(
        self, plain: protocol.Unsupported | None = None, error: Exception | None = None, **profile: bool
    ) -> None:
        self.plain, self.error, self.profile = plain, error, replace(self.profile, **profile)
        self.starts: list[protocol.EngineCommand] = []
        self.asks: list[Sequence[protocol.SubjectRequest]] = []

    def version(self) -> str:
        return "1.5"

    def translate(self, prepared: PreparedCell) -> protocol.EngineCommand | protocol.Unsupported:
        if self.plain is not None and prepared.cell.algorithm == "none":
            return self.plain
        asks = tuple(protocol.SubjectRequest(request.name, (1,), {}) for request in prepared.requests)
        return protocol.EngineCommand({"drafter": prepared.cell.algorithm}, {}, asks)

    def start(self, command: protocol.EngineCommand) -> protocol.RunningEngine:
        self.starts.append(command)
        return OtherEngine(self)


class OtherEngine(protocol.RunningEngine):
    resolved: ClassVar = {"topk": 9}

    def __init__(self, subject: Other) -> None:
        self.subject = subject

    def generate(self, asks: Sequence[protocol.SubjectRequest]) -> list[protocol.Answer]:
        if self.subject.error is not None:
            error, self.subject.error = self.subject.error, None
            raise error
        self.subject.asks.append(asks)
        return [protocol.Answer(ask.id, (1,), (place,), "", "length", None, 0, ()) for place, ask in enumerate(asks)]


class Sees:
    """A gate that keeps what it judges, with a state."""

    needs: frozenset[protocol.Capability] = frozenset()
    thresholds: Mapping[str, float] = {}

    def __init__(self, state: State = State.PASS, name: str = "schedule") -> None:
        self.state, self.name = state, name
        self.runs: list[protocol.Run] = []

    def applies(self, cell: Cell) -> bool:
        return True

    def judge(self, prepared: PreparedCell, run: protocol.Run, baseline: protocol.Run) -> Outcome:
        self.runs.append(run)
        self.run, self.baseline = run, baseline
        return Outcome(self.name, self.state, {"first": None})


@pytest.mark.parametrize("gates", [(), (ClaimedCapabilitiesGate(),)])
def test_a_subject_whose_answers_no_gate_compares_is_not_run(gates: Sequence[Gate]):
    subject = Other()
    record = runner(subject, gates).run_cell(Cell.from_id("eagle3.pair"))
    assert (record.state, record.error, record.gates, subject.starts) == ("UNSUPPORTED", UNJUDGED, (), [])
    judged = runner(subject, (*gates, Sees())).run_cell(Cell.from_id("eagle3.pair"))
    assert (judged.state, len(subject.starts)) == ("PASS", 2)


@pytest.mark.parametrize(("missing", "state"), [("torch.nn", "NOT MEASURED"), ("elsewhere", "INFRA")])
def test_a_gate_without_its_package_is_not_measured_and_names_the_extra(monkeypatch, missing, state):
    gate = Sees()

    def judge(*given: object) -> Outcome:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(gate, "judge", judge)
    record = runner(Other(), (gate,)).run_cell(Cell.from_id("eagle3.pair"))
    found = record.gate("schedule")
    assert record.state == state
    if state == "NOT MEASURED":
        assert found is not None and "torch is not installed" in found.message and "specmatrix[engine]" in found.message


def test_a_subject_that_always_drafts_says_so():
    record = runner(Other(protocol.Unsupported("it always drafts")), (Sees(),)).run_cell(Cell.from_id("eagle3.pair"))
    error = "baseline: other does not support the cell without speculation: it always drafts"
    assert (record.state, record.error, record.start.requested) == ("FAIL", error, {"drafter": "eagle3"})
    assert record.traceback.endswith(f"ConfigError: {error.removeprefix('baseline: ')}\n")


def test_the_draft_of_another_engine_has_the_cells_shape_unless_it_says_another():
    subject, gate = Other(), Sees()
    record = runner(subject, (gate,)).run_cell(Cell.from_id("eagle3.s3.k1.n4.pair.length"))
    assert gate.run.resolved == {"num_steps": 3, "topk": 9, "num_draft_tokens": 4, "dtype": "float32"}
    assert gate.baseline.resolved == {"num_steps": 0, "topk": 9, "num_draft_tokens": 1, "dtype": "float32"}
    assert [command.flags["drafter"] for command in subject.starts] == ["eagle3", "none"] and record.engine_starts == 2
    assert known_shape(prepare(Cell.from_id("eagle3.k4"))) == {"dtype": "float32"}, "a refused cell has none"


class Ties(OracleGate):
    """An oracle that finds a tie at the first token of request b."""

    def next_tie(self, target: str, request: RequestSpec, start: int, got: Sequence[int], half: bool) -> int | None:
        return 0 if request.name == "b" and start == 0 else None

    def text(self, target: str, request: RequestSpec) -> tuple[int, ...]:
        return 5, 6

    def applies(self, cell: Cell) -> bool:
        return False


@pytest.mark.parametrize(("oracle", "resumed"), [(False, {}), (True, {"b": [(1, (0,))]})])
@pytest.mark.parametrize("has_baseline", [False, True])
def test_the_oracle_judges_the_baseline_or_what_has_none_itself(oracle: bool, resumed: object, has_baseline: bool):
    subject, gate = Other(has_baseline=has_baseline), Sees()
    made = runner(subject, (Ties(), gate) if oracle else (gate,))
    assert made.run_cell(Cell.from_id("eagle3.pair")).state == "PASS"
    assert (gate.baseline.resumed, gate.run.resumed) == (resumed, {})
    assert [answer.output_ids for answer in gate.baseline.answers] == [(0,), (1,)]
    assert (len(subject.starts), made.baselines.starts) == ((2, 1) if has_baseline else (1, 0))
    assert subject.asks[1 + has_baseline :] == [[protocol.SubjectRequest("b", (1, 5), {})]] * oracle


def test_ranks_that_diverge_are_the_red_of_their_cell_and_the_next_one_gets_a_fresh_start():
    subject = Other(
        error=protocol.Diverged(Agreement(2, 3, 3, ("a", "b"), "step 1: the plan of rank 1 and of rank 0 differ"))
    )
    made = runner(subject, (Sees(),))
    cell = Cell.from_id("eagle3.pair")
    red = made.run_cell(cell)
    (gate,) = red.gates
    assert (red.state, red.error, red.start.resolved, made.engine) == ("FAIL", None, {"topk": 9}, None)
    assert (gate.name, gate.state, gate.message) == ("ranks", "FAIL", "step 1: the plan of rank 1 and of rank 0 differ")
    assert (made.run_cell(cell).state, len(subject.starts)) == ("PASS", 3)


def test_waivers_hold_for_the_subject_that_runs():
    red = (Sees(State.FAIL),)
    rule = WaiverRule("algorithm=eagle3", "known", "2999-12-31", "schedule", subject="other", versions=">=1,<2")
    for subject, waived in ((Other(), Waiver("known", "2999-12-31")), (ReferenceSubject(), None)):
        made = runner(subject, red)
        made.waivers = (rule,)
        assert made.run_cell(Cell.from_id("eagle3.pair")).waived == waived


def test_a_runner_of_a_named_subject_has_its_requests_and_its_gates():
    rule = WaiverRule("algorithm=none", "slow", "2030-01-31")
    made = subject_runner("transformers", 7, "gpu1", (rule,), "red")
    subject = load_subject("transformers")
    assert (made.subject.name, made.seed, made.tier) == ("transformers", 7, "gpu1")
    assert (made.waivers, made.explain) == ((rule,), "red")
    assert [gate.name for gate in made.gates] == [gate.name for gate in applied_gates(subject.profile).gates]
    assert made.workload == made.subject.requests and made.subject.profile.foreign
    plain = subject_runner("reference", 7, "cpu")
    assert (plain.waivers, plain.explain, plain.timed, plain.subject.profile.foreign) == ((), "none", False, False)
    made = reference_runner(5)
    assert (made.seed, len(made.gates)) == (5, 17)
    record = made.run_cell(Cell.from_id("none.length"))
    assert {gate.name for gate in record.gates} >= {"config", "effective", "ledger", "lossless", "finish"}


class Stalling(ReferenceSubject):
    """Its engines without a drafter, or only the others, take steps and do nothing."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.plain = plain

    def start_engine(self, config: EngineConfig) -> ReferenceEngine:
        engine = super().start_engine(config)
        if (config.speculative_algorithm == "NONE") is self.plain and config.max_total_tokens != 192:
            engine.llm.loop.step = lambda: None
        return engine


def test_an_engine_that_never_ends_is_red_in_a_few_steps_and_the_next_cell_runs():
    cells = [Cell.from_id("eagle3.pair"), Cell.from_id("eagle3.p4.tight.pair")]
    stalled, fine = map(runner(Stalling(plain=False)).run_cell, cells)
    (gate,) = stalled.gates
    found = (stalled.state, stalled.error, gate.name, gate.state, fine.state)
    assert found == ("FAIL", None, "schedule", "FAIL", "PASS")
    assert gate.message.startswith("the requests have not ended after") and "a has had 0 output tokens" in gate.message
    assert gate.numbers["steps"] < 20
    plain = runner(Stalling(plain=True)).run_cell(cells[0])
    assert plain.state == "FAIL" and plain.error is not None and plain.error.startswith("baseline: Stalled: ")


def test_refused_cell_passes_where_refused_and_fails_where_started_and_the_other_way_round():
    class Other(ReferenceSubject):
        def __init__(self, config: EngineConfig) -> None:
            super().__init__()
            self.config = config

        def start_engine(self, config: EngineConfig) -> ReferenceEngine:
            return super().start_engine(self.config)

    cell = Cell.from_id("eagle3.k4")
    refused = runner(ReferenceSubject()).run_cell(cell)
    assert [gate.name for gate in refused.gates] == ["config"] and refused.state != "FAIL"
    started = runner(Other(asked(Cell()))).run_cell(cell)
    assert started.state == "FAIL" and started.gates[0].message
    strict = runner(Other(replace(asked(Cell()), page_size=0))).run_cell(Cell.from_id("none.pair"))
    assert strict.state == "FAIL" and "page_size" in strict.gates[0].message
    short = runner(Other(replace(asked(Cell()), context_length=20))).run_cell(Cell.from_id("none.pair"))
    (gate,) = short.gates
    assert (short.state, short.error, gate.name) == ("FAIL", None, "finish")
    assert " was refused: prompt (" in gate.message and short.first_red.request == gate.message.split()[0]


def test_a_gate_does_not_judge_a_subject_that_lacks_what_it_needs():
    class Silent(ReferenceSubject):
        profile = protocol.Profile(frozenset(protocol.Capability) - {protocol.Capability.JOURNAL}, in_process=True)

    for made in (runner(Silent()), runner(ReferenceSubject(), ())):
        record = made.run_cell(Cell.from_id("none.pair"))
        assert (record.state, record.error, record.gates) == ("NOT MEASURED", "no gate applied to this cell", ())


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((State.PASS, State.PASS), "PASS"),
        ((State.PASS, State.NOT_MEASURED), "NOT MEASURED"),
        ((State.NOT_MEASURED, State.FAIL), "FAIL"),
    ],
)
def test_state_follows_the_worst_gate(states: Sequence[State], expected: str):
    gates = [Sees(state, f"g{index}") for index, state in enumerate(states)]
    record = runner(ReferenceSubject(), gates).run_cell(Cell.from_id("none.pair"))
    assert (record.state, record.gates[0].numbers) == (expected, {"first": "none"})


def test_an_engine_knows_its_earlier_answers():
    """Both workloads of one start, but none of the previous start; a session's turns share an account."""
    gate = Sees()
    both = runner(ReferenceSubject(), (gate,))
    for name in ("none.pair", "none.pair.abort_running", "none.p4.pair"):
        assert both.run_cell(Cell.from_id(name)).state == "PASS"
    assert [[one.name for one in run.served] for run in gate.runs] == [["a", "b"], ["a", "b", "a", "b"], ["a", "b"]]
    served, answer = gate.runs[1].served, gate.runs[1].answers[0]
    one = served[2]
    assert one.tokens == (*answer.prompt_ids, *answer.output_ids) and one.prompt == len(answer.prompt_ids)
    assert len({one.id for one in served}) == 4 and all(one.account == one.id for one in served)


def test_a_worker_knows_that_a_cell_broke_its_cuda_context(monkeypatch):
    """As torch reports it; an illegal access itself needs a GPU."""

    def fail() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    runner = reference_runner(0)
    assert not runner.device_lost
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not runner.device_lost
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    assert runner.device_lost
