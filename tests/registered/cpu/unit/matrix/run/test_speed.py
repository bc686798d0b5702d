"""The speed of green cells: what is measured, on which engines, and when there is none."""

import gc
from dataclasses import replace
from itertools import count

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import STARTS
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.run import speed
from specmatrix.matrix.run.provenance import this_host
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.run.speed import LIMIT, MAX_DIFFERENT, TURNS, by_turns, compares, device_name, judged, samples
from specmatrix.matrix.subjects import protocol
from specmatrix.matrix.subjects.engine_process import EngineFailed, EngineProcess
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.tensor_parallel import RankedSubject
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.speed import RATIOS
from specmatrix.reports.store import cell_from_json, cell_to_json

CELL = Cell.from_id("eagle3.s3.v2.pair")


class Watched(RankedSubject):
    """The reference engine with the configurations of its starts and its engines."""

    def __init__(self) -> None:
        super().__init__()
        self.engines = []

    def start_engine(self, config):
        engine = super().start_engine(config)
        self.engines.append((config, engine))
        return engine


def runner(subject, **changes: object):
    made = Runner(subject, 0, gates=(LedgerGate(),))
    for name, value in ({"timed": True, "starts": 2} | changes).items():
        setattr(made, name, value)
    return made


@pytest.fixture(scope="module")
def measured():
    """(pairs that were started, record) of one timed cell."""
    pairs = []

    class KeptPair(speed.PairProcess):
        def __init__(self, subject, prepared) -> None:
            super().__init__(subject, prepared)
            pairs.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "PairProcess", KeptPair)
        return pairs, runner(RankedSubject()).run_cell(CELL)


def test_a_green_cell_has_its_speed(measured):
    pairs, record = measured
    gate = record.gate("speed")
    assert (record.state, gate.state, gate.message) == ("PASS", "PASS", "")
    assert [gate.numbers[name] for name in ("clock", "device", "gpus")] == ["cpu", this_host()["cpu"], 0]
    assert (gate.numbers["starts"], gate.numbers["turns"]) == (2, TURNS // 2)
    assert all(len(gate.numbers[name]) == TURNS for name in RATIOS.values())
    low, high = gate.interval
    assert low <= gate.numbers["speed_up"] <= high
    assert gate.numbers["tokens_per_second"] > 10 < gate.numbers["baseline_tokens_per_second"]
    assert cell_from_json(cell_to_json(record)) == record
    # Every start has a process of its own, which ends with it; the gates' two are before them.
    assert len(pairs) == 2 and all(pair.ended for pair in pairs) and record.engine_starts == 6


def test_timed_engines_are_the_cell_and_the_same_start_without_a_drafter():
    subject = Watched()
    pair = speed.TimedPair(subject, prepare(CELL))
    found = pair.samples(1)
    assert [len(side) for side in found] == [1, 1, 1]
    assert found.mine[0].answers == found.base[0].answers
    assert [config.speculative_algorithm for config, _ in subject.engines] == ["EAGLE3", "NONE"]
    for config, engine in subject.engines:
        assert (config.kv_stamps, config.strict_memory, config.spec_version) == (False, 0, "v2")
        assert config.enable_deterministic_inference
        assert (len(engine.journal()), engine.work()) == (0, None)  # nothing is recorded
    drafted = subject.engines[0][1]
    assert (pair.start_hash, pair.resolved) == (drafted.start_hash, drafted.resolved)
    assert pair.readback()["algorithm"] == "EAGLE3"
    pair.stop()
    pair.stop()


class Scripted(protocol.Subject):
    """Another engine whose answers have three tokens each, or only texts; its flags are its cell's algorithm and
    requests' length."""

    name = "scripted"
    profile = protocol.Profile(frozenset({protocol.Capability.TOKEN_IDS}))

    def __init__(self) -> None:
        self.log: list[object] = []

    def translate(self, prepared):
        asks = tuple(
            protocol.SubjectRequest(one.name, (1,), {"limit": one.max_new_tokens}) for one in prepared.requests
        )
        return protocol.EngineCommand({"cell": prepared.cell.id}, {}, asks)

    def start(self, command):
        self.log.append((command.flags["cell"], len(command.flags)))
        return ScriptedEngine(self.log)


class ScriptedEngine(protocol.RunningEngine):
    def __init__(self, log) -> None:
        self.log = log

    def generate(self, asks):
        self.log.append([(ask.id, ask.fields["limit"]) for ask in asks])
        texts = (((4, 5, 6), ""), ((), " Now: Tom"))
        return [
            protocol.Answer(ask.id, (1,), *text, "length", None, 0, ()) for ask, text in zip(asks, texts, strict=True)
        ]

    def close(self):
        self.log.append("closed")
        raise OSError("it is gone")


def test_a_turn_is_its_requests_and_those_of_one_token(monkeypatch):
    times = iter((10.0, 13.0, 20.0, 20.5))
    subject, log = Scripted(), []
    turn = speed.timed_turn(subject, prepare(CELL, seed=3), ScriptedEngine(log), lambda: next(times), 5)
    assert turn == speed.TimedTurn(3.0, 0.5, 3 + 4, 4, ((4, 5, 6), ())), "a text counts as its tokens"
    assert log == [[("t5.0", LIMIT), ("t5.1", LIMIT)], [("t5.0", 1), ("t5.1", 1)]]
    monkeypatch.setattr(subject, "translate", lambda prepared: protocol.Unsupported("it has no short requests"))
    for timed in (
        lambda: speed.timed_turn(subject, prepare(CELL), ScriptedEngine(log), float, 5),
        lambda: speed.TimedPair(subject, prepare(CELL)),
    ):
        with pytest.raises(ConfigError, match=r"^scripted cannot be timed: it has no short requests$"):
            timed()


@pytest.mark.parametrize(
    ("seconds", "first", "longest", "each"), [(4.0, 1.0, 4, 1.0), (4.0, 3.9, 1, 0.4), (4.0, 9.0, 5, 0.1)]
)
def test_the_rates_of_a_turn(seconds, first, longest, each):
    turn = speed.TimedTurn(seconds, first, 10, longest, ())
    assert (turn.rate, turn.each) == (2.5, pytest.approx(each))


def test_both_engines_of_another_subject_are_timed_as_they_are_and_end_whatever_they_raise(monkeypatch):
    stopped = []

    class Process(EngineProcess):
        def __init__(self, engine) -> None:
            self.engine, self.generate = engine, engine.generate

        def stop(self) -> None:
            stopped.append(self)

    subject = Scripted()
    monkeypatch.setattr(speed, "start_engine", lambda subject, command: subject.start(command))
    pair = speed.TimedPair(subject, prepare(CELL))
    assert subject.log == [("eagle3.s3.v2.pair", 1), ("none", 1)]
    found = pair.samples(2)
    assert [len(side) for side in found] == [2, 2, 2] and all(seconds > 0 for seconds in found.works)
    assert [asks[0][0] for asks in subject.log[2::2]] == [f"t{turn}.0" for turn in (-2, -2, -1, -1, 0, 0, 1, 1)]
    pair.stop()
    assert subject.log[-2:] == ["closed", "closed"]
    pair.engines = [Process(engine) for engine in pair.engines]
    pair.stop()
    assert stopped == pair.engines and subject.log.count("closed") == 2


def test_a_pair_without_its_plain_engine_does_not_keep_the_other(monkeypatch):
    subject = Scripted()

    def start(subject, command):
        if command.flags["cell"] == "none":
            raise EngineFailed("out of memory")
        return subject.start(command)

    monkeypatch.setattr(speed, "start_engine", start)
    with pytest.raises(EngineFailed, match=r"^out of memory$"):
        speed.TimedPair(subject, prepare(CELL))
    assert subject.log[-1] == "closed"


def test_a_process_times_the_cell_that_it_was_given(monkeypatch):
    prepared = prepare(CELL, "gpu1", 5)
    monkeypatch.setattr(speed, "TimedPair", lambda *given: given)
    for subject in (ReferenceSubject(), Scripted()):
        _, found = speed.PairStart(subject, prepared).start(protocol.EngineCommand({}, {}, ()))
        assert (found.cell, found.tier, found.seed, found.subject) == (CELL, "gpu1", 5, subject.name)
        assert _ is subject and found.requests == prepared.requests
    gc.unfreeze()


@pytest.mark.parametrize(
    ("subject", "profile", "starts", "asked"),
    [
        # A device may have no room for more engines.
        (Scripted, {"in_process": True}, 2, (False, 0, 2)),
        (ReferenceSubject, {}, None, (True, 1, STARTS)),
        # An engine that cannot be started again has one start.
        (ReferenceSubject, {"restarts": False}, None, (True, 1, 1)),
    ],
)
def test_engines_of_another_subject_make_room_for_timed_ones(monkeypatch, subject, profile, starts, asked):
    running = []

    def measure(subject, prepared, starts):
        running.append((made.engine is not None, len(made.baselines.engines), starts))
        return Outcome("speed", State.PASS, {"starts": starts})

    monkeypatch.setattr(speed, "measure", measure)
    made = runner(subject(), gates=(Sees(),), starts=starts)
    made.subject.profile = replace(made.subject.profile, **profile)
    record = made.run_cell(CELL)
    assert (record.state, record.engine_starts, running) == ("PASS", 2 + 2 * asked[-1], [asked])


class Sees:
    name, needs, applies = "ledger", frozenset(), lambda self, cell: True

    def judge(self, prepared, run, baseline):
        return Outcome("ledger", State.PASS)


def test_a_refused_or_red_cell_and_one_without_the_stage_have_no_speed():
    record = runner(ReferenceSubject()).run_cell(Cell.from_id("eagle3.k4"))
    assert (record.state, [gate.name for gate in record.gates]) == ("PASS", ["config"])
    subject = Watched()
    record = runner(subject, gates=(Red(),)).run_cell(CELL)
    assert (record.state, [gate.name for gate in record.gates]) == ("FAIL", ["ledger"])
    assert all(config.kv_stamps for config, _ in subject.engines)
    assert runner(Watched(), timed=False).run_cell(CELL).gate("speed") is None


def test_a_batch_has_half_as_many_turns(monkeypatch):
    def same(subject, prepared, turns, starts):
        return starts_of([sample()] * turns, [sample()] * turns, [1.0] * turns, starts)

    monkeypatch.setattr(speed, "samples", same)
    for cell, turns in (("eagle3.s3.v2", 32), ("eagle3.s3.v2.pair", 16)):
        outcome = speed.measure(ReferenceSubject(), prepare(Cell.from_id(cell)), 3)
        assert (outcome.numbers["turns"], outcome.numbers["starts"]) == (turns, 3)


class Red(LedgerGate):
    def judge(self, prepared, run, baseline):
        return replace(super().judge(prepared, run, baseline), state=State.FAIL, message="red")


def test_a_process_with_other_sources_times_nothing(tmp_path):
    start = speed.PairStart(RankedSubject(), prepare(CELL))
    start.home = tmp_path
    with pytest.raises(RuntimeError, match=f"the process imports .*, not {tmp_path}"):
        start.start(protocol.EngineCommand({}, {}, ()))


class MadeUp:
    """A pair whose fourth sample, or fourth start, fails if `fails` says so; says when it ends."""

    fails = ""

    def __init__(self, log) -> None:
        self.log, self.number = log, next(log.numbers)
        if self.number == 3 and self.fails == "start":
            raise EngineFailed("out of memory")
        log.append(("start", self.number))

    def samples(self, turns):
        if self.number == 3 and self.fails == "samples":
            raise EngineFailed("lost")
        self.log.append(("samples", turns))
        return speed.StartSamples([sample()] * turns, [sample()] * turns, [1.0] * turns)

    def stop(self):
        self.log.append(("stop", self.number))


class Log(list):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = count()


@pytest.fixture
def log(monkeypatch):
    """What happened to the pairs of both kinds."""
    found = Log()
    for kind in ("PairProcess", "TimedPair"):
        monkeypatch.setattr(speed, kind, lambda *_: MadeUp(found))
    return found


def foreign(**profile: object):
    subject = ReferenceSubject()
    subject.profile = protocol.Profile(frozenset({protocol.Capability.TOKEN_IDS}), **profile)
    return subject


def test_a_timed_engine_that_fails_is_the_cells_result(monkeypatch):
    def measure(*given: object):
        raise EngineFailed("out of memory", "start")

    monkeypatch.setattr(speed, "measure", measure)
    record = runner(ReferenceSubject(), gates=(Sees(),)).run_cell(CELL)
    assert (record.state, record.error, record.verb, record.gates) == ("FAIL", "out of memory", "start", ())


@pytest.mark.parametrize("fails", ["start", "samples"])
@pytest.mark.parametrize("subject", [ReferenceSubject(), foreign()])
def test_no_engine_outlives_a_failure(log, monkeypatch, subject, fails):
    monkeypatch.setattr(MadeUp, "fails", fails)
    with pytest.raises(EngineFailed):
        list(samples(subject, prepare(CELL), 4, 6))
    started = {number for what, number in log if what == "start"}
    assert started == {number for what, number in log if what == "stop"} and len(started) >= 3


def test_engines_of_one_rank_load_side_by_side_and_others_one_after_the_other(log):
    list(samples(ReferenceSubject(), prepare(CELL), 4, 3))
    assert [what for what, _ in log][:4] == ["start", "start", "start", "samples"]
    for subject, cell in ((foreign(), CELL), (ReferenceSubject(), Cell.from_id("eagle3.tp2.pair"))):
        log.clear()
        list(samples(subject, prepare(cell), 4, 3))
        assert [what for what, _ in log if what != "stop"] == ["start", "samples"] * 3


def test_no_more_engines_load_than_are_usual(log):
    assert len(list(samples(ReferenceSubject(), prepare(CELL), 4, 20))) == 20
    alive, most = set(), 0
    for what, number in log:
        if what == "start":
            alive.add(number)
        elif what == "stop":
            alive.discard(number)
        most = max(most, len(alive))
    assert (most, alive) == (STARTS, set())


def test_cpu_time_counts_where_all_the_work_is_here():
    subject, other = ReferenceSubject(), ReferenceSubject()
    other.profile = protocol.Profile(frozenset())
    cells = (prepare(CELL), prepare(CELL, "gpu1"), prepare(Cell.from_id("eagle3.tp2.pair")))
    assert [speed.clock_of(subject, cell)[0] for cell in cells] == ["cpu", "wall", "wall"]
    assert speed.clock_of(other, cells[0])[0] == "wall"


def test_the_plain_cell_of_another_engine_has_its_defaults():
    cell = prepare(Cell.from_id("eagle3.qwen3.s3.v2.p16.burst.temperature"))
    assert speed.plain_cell(cell, foreign=False).cell.id == "none.qwen3.v2.p16.burst.temperature"
    assert speed.plain_cell(cell, foreign=True).cell.id == "none.qwen3.burst.temperature"
    wide = speed.plain_cell(prepare(Cell.from_id("eagle3.s2.k2.n8")), foreign=False)
    assert (wide.constraints, wide.expectation) == ((), "runs")


def test_the_fixed_work_is_the_same_every_time():
    work = speed.fixed_work(gpu=False)
    assert work() == work()
    assert device_name(gpu=False) == this_host()["cpu"]


def sample(seconds=1.0, first=0.1, tokens=20, longest=10, answers=((1, 2, 3),)):
    return speed.TimedTurn(seconds, first, tokens, longest, answers)


def starts_of(mine, base, works, starts=2):
    """The same samples of each start."""
    return [speed.StartSamples(mine, base, works)] * starts


def outcome(mine, base, work=1.0, starts=2, compare=True):
    return judged(starts_of(mine, base, [work] * len(mine), starts), "cpu", 0, compare=compare)


def test_ratios_of_a_turn():
    found = outcome([sample(1.0)] * 6, [sample(2.0, first=0.2)] * 6, 0.5)
    assert {name: found.numbers[key][0] for name, key in RATIOS.items()} == {
        "speed": 2.0, "first_token": 2.0, "output_token": 2.0, "own_speed": 10.0, "plain_speed": 5.0,
    }  # fmt: skip
    assert (found.numbers["output_token_ms"], found.numbers["starts"], found.numbers["turns"]) == (100.0, 2, 6)
    assert (found.state, found.interval) == (State.PASS, (pytest.approx(2), pytest.approx(2)))
    # A first token that was disturbed leaves time for the others.
    late = outcome([sample(first=9.0)] * 6, [sample()] * 6)
    assert late.numbers["output_token_ratios"][0] == pytest.approx(9.0)


@pytest.mark.parametrize("broken", [{"tokens": 0}, {"seconds": 0.0}, {"seconds": -1.0}])
def test_no_tokens_or_no_time_is_not_measured(broken):
    found = outcome([sample(), sample(**broken)] * 3, [sample()] * 6)
    assert (found.state, found.message) == (State.NOT_MEASURED, "a timed turn has no tokens or took no time")


def test_answers_that_differ_are_red_unless_few_do_by_ties():
    found = outcome([sample()] * 6, [sample(answers=((1, 2, 3, 4),))] * 6)
    text = "12 of 12 timed requests differ from plain decoding, first t0.0 at token 3, so their speed means nothing"
    assert (found.state, found.message) == (State.FAIL, text)

    def state(wrong, compare=True):
        base = [sample(answers=((1, 2, 4 if turn < wrong else 3),)) for turn in range(20)]
        return outcome([sample()] * 20, base, compare=compare).state

    least = int(20 * MAX_DIFFERENT)
    assert [state(0), state(least), state(least + 1)] == [State.PASS, State.PASS, State.FAIL]
    assert state(20, compare=False) is State.PASS


def test_one_start_has_no_interval():
    found = outcome([sample()] * 6, [sample()] * 6, starts=1)
    assert (found.state, found.interval, found.numbers["speed_up"]) == (State.PASS, None, 1.0)


def test_turns_alternate_and_those_in_front_are_dropped():
    calls = []
    sides = [lambda turn: calls.append(("a", turn)) or turn, lambda turn: calls.append(("b", turn))]
    assert by_turns(sides, 2, warm=1) == [[0, 1], [None, None]]
    assert calls == [("a", -1), ("b", -1), ("a", 0), ("b", 0), ("b", 1), ("a", 1)]


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({protocol.Capability.TOKEN_IDS, protocol.Capability.SAMPLED_IDENTITY}, (True, True)),
        ({protocol.Capability.TOKEN_IDS}, (True, False)),
        ({protocol.Capability.SAMPLED_IDENTITY}, (False, False)),
    ],
)
def test_answers_are_compared_where_a_drafter_may_not_change_them(claims, expected):
    subject = ReferenceSubject()
    subject.profile = protocol.Profile(frozenset(claims))
    assert (compares(subject, CELL), compares(subject, CELL._replace(sampling="temperature"))) == expected
