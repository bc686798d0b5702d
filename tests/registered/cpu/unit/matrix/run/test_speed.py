"""The speed of green cells: what is measured, on which engines, and when there is none."""

from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.run.prepared_cell import prepare
from specmatrix.matrix.run.provenance import this_host
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.run.speed import MOST_DIFFERENT, TimedTurn, clock_of, fixed_work, judged, plain_cell
from specmatrix.matrix.run.turns import by_turns
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.matrix.subjects.protocol import Profile
from specmatrix.reports.gate_numbers import RATIOS
from specmatrix.reports.store import cell_from_json, cell_to_json

pytestmark = pytest.mark.register(est_seconds=6, stage="pr")

CELL = Cell.from_id("eagle3.s3.v2.pair")
TURNS = 6


class Watched(ReferenceSubject):
    """The reference engine with the configurations of its starts and its engines; `wrong` answers of timed requests
    lose a token, on engines with a drafter."""

    wrong = 0

    def __init__(self) -> None:
        super().__init__()
        self.engines = []

    def start_engine(self, config):
        engine = super().start_engine(config)
        if self.wrong and not config.kv_stamps and config.speculative_algorithm != "NONE":
            engine = Forgetful(engine.llm, engine.clock)
            engine.wrong = self.wrong
        self.engines.append((config, engine))
        return engine


class Forgetful(ReferenceEngine):
    wrong = 0

    def generate(self, requests):
        answers = super().generate(requests)
        for place, answer in enumerate(answers):
            if len(answer.output_ids) > 1 and self.wrong:
                self.wrong -= 1
                answers[place] = replace(answer, output_ids=answer.output_ids[:-1])
        return answers


def runner(subject, **changes: object):
    made = Runner(subject, 0, gates=(LedgerGate(),))
    made.timed, made.turns = True, TURNS
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.fixture(scope="module")
def measured():
    """(subject, record) of one timed cell."""
    subject = Watched()
    return subject, runner(subject).run_cell(CELL)


def test_a_green_cell_has_its_speed(measured):
    _, record = measured
    gate = record.gate("speed")
    assert (record.state, gate.state, gate.message) == ("PASS", "PASS", "")
    assert (gate.numbers["clock"], gate.numbers["device"]) == ("cpu", this_host()["cpu"])
    assert gate.numbers["turns"] == TURNS
    assert all(len(gate.numbers[name]) == TURNS for name in RATIOS.values())
    low, high = gate.interval
    assert low <= gate.numbers["speed_up"] <= high
    assert gate.numbers["tokens_per_second"] > 10 < gate.numbers["baseline_tokens_per_second"]
    assert cell_from_json(cell_to_json(record)) == record


def test_timed_engines_are_the_cell_and_the_same_start_without_a_drafter(measured):
    subject, record = measured
    timed = [config for config, _ in subject.engines if not config.kv_stamps]
    assert [config.speculative_algorithm for config in timed] == ["EAGLE3", "NONE"]
    assert all(config.strict_memory == 0 and config.spec_version == "v2" for config in timed)
    assert all(config.enable_deterministic_inference for config in timed)
    assert record.engine_starts == 4  # with the gates' two


def test_nothing_records_what_a_timed_engine_does(measured):
    subject, _ = measured
    for config, engine in subject.engines:
        entries, _, _ = engine.journal()
        assert (len(entries) > 0, engine.work() is not None) == (config.kv_stamps, config.kv_stamps)


def test_a_red_cell_has_no_speed():
    subject = Watched()
    made = runner(subject)
    made.gates = (Red(),)
    record = made.run_cell(CELL)
    assert (record.state, [gate.name for gate in record.gates]) == ("FAIL", ["ledger"])
    assert all(config.kv_stamps for config, _ in subject.engines)


class Red(LedgerGate):
    def judge(self, prepared, run, baseline):
        return replace(super().judge(prepared, run, baseline), state=State.FAIL, message="red")


def test_without_the_stage_nothing_is_timed():
    assert runner(Watched(), timed=False).run_cell(CELL).gate("speed") is None


def test_a_speed_of_other_answers_is_red():
    subject = Watched()
    subject.wrong = 99
    record = runner(subject).run_cell(CELL)
    assert record.state == "FAIL"
    assert record.gate("speed").message == (
        "12 of 12 timed requests differ from plain decoding, first t0.0 at token 63, so their speed means nothing"
    )


def test_a_timed_engine_that_crashes_is_the_cells_result():
    class Crashing(Watched):
        def start_engine(self, config):
            if not config.kv_stamps:
                raise RuntimeError("a wire came loose")
            return super().start_engine(config)

    record = runner(Crashing()).run_cell(CELL)
    assert record.state == "INFRA"
    assert record.error.startswith("RuntimeError: a wire came loose")


def test_cpu_time_counts_where_all_the_work_is_here():
    subject, cell = ReferenceSubject(), prepare(CELL)
    assert clock_of(subject, cell)[0] == "cpu"
    assert clock_of(subject, prepare(CELL, "gpu1"))[0] == "wall"
    assert clock_of(subject, prepare(Cell.from_id("eagle3.tp2.pair")))[0] == "wall"
    other = ReferenceSubject()
    other.profile = Profile(frozenset())
    assert clock_of(other, cell)[0] == "wall"


def test_the_plain_cell_of_another_engine_has_its_defaults():
    cell = prepare(Cell.from_id("eagle3.qwen3.s3.v2.p16.burst.temperature"))
    assert plain_cell(cell, foreign=False).cell.id == "none.qwen3.v2.p16.burst.temperature"
    assert plain_cell(cell, foreign=True).cell.id == "none.qwen3.burst.temperature"


def test_the_fixed_work_is_the_same_every_time():
    device, work = fixed_work(gpu=False)
    assert (device, work()) == (this_host()["cpu"], work())


def sample(seconds=1.0, first=0.1, tokens=20, longest=10, answers=((1, 2, 3),)):
    return TimedTurn(seconds, first, tokens, longest, answers)


def test_ratios_of_a_turn():
    found = judged([sample(1.0)] * 6, [sample(2.0, first=0.2)] * 6, [0.5] * 6, "cpu", "cpu", compare=True)
    assert {name: found.numbers[key][0] for name, key in RATIOS.items()} == {
        "speed": 2.0, "first_token": 2.0, "output_token": 2.0, "own_speed": 10.0, "plain_speed": 5.0,
    }  # fmt: skip
    assert (found.numbers["output_token_ms"], found.numbers["work_spread"]) == (100.0, 0.0)
    assert (found.state, found.interval) == (State.PASS, (pytest.approx(2), pytest.approx(2)))


def test_a_first_token_that_was_disturbed_leaves_time_for_the_others():
    found = judged([sample(first=9.0)] * 6, [sample()] * 6, [1.0] * 6, "cpu", "cpu", compare=True)
    assert found.numbers["output_token_ratios"][0] == pytest.approx(9.0)


@pytest.mark.parametrize("broken", [{"tokens": 0}, {"seconds": 0.0}, {"seconds": -1.0}])
def test_no_tokens_or_no_time_is_not_measured(broken):
    found = judged([sample(), sample(**broken)] * 3, [sample()] * 6, [1.0] * 6, "cpu", "cpu", compare=True)
    assert (found.state, found.message) == (State.NOT_MEASURED, "a timed turn has no tokens or took no time")


def test_few_answers_may_differ_by_ties():
    def state(wrong, compare=True):
        base = [sample(answers=((1, 2, 4 if turn < wrong else 3),)) for turn in range(20)]
        return judged([sample()] * 20, base, [1.0] * 20, "cpu", "cpu", compare).state

    least = int(20 * MOST_DIFFERENT)
    assert [state(0), state(least), state(least + 1)] == [State.PASS, State.PASS, State.FAIL]
    assert state(20, compare=False) is State.PASS


def test_turns_alternate_and_those_in_front_are_dropped():
    calls = []
    found = by_turns(
        [lambda turn: calls.append(("a", turn)) or turn, lambda turn: calls.append(("b", turn))], 2, warm=1
    )
    assert calls == [("a", -1), ("b", -1), ("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    assert found == [[0, 1], [None, None]]
