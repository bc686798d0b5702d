"""The stage `weights`: the published pairs of a tier as cells of one report, each run in its own process."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from specmatrix.child_process import ChildProcess
from specmatrix.matrix.accuracy.paired_run import FILES, Asking
from specmatrix.matrix.accuracy.task import EXTRACTORS, Split
from specmatrix.matrix.accuracy.verdict import ALPHA
from specmatrix.matrix.cover.selection import WEIGHTS
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.run.record import start_record
from specmatrix.matrix.zoo.published.pairs import COLLAPSE, PAIRS, ModelPair, collapsed, pair_of
from specmatrix.reports.render.progress import counting
from specmatrix.reports.render.run import write_run
from specmatrix.reports.render.terminal import show_run
from specmatrix.reports.schema import CellRecord, CellResult, CellState, GateResult, Header, StartRecord
from specmatrix.reports.stats import wilson
from specmatrix.reports.store import ReportWriter

TIER: Final = "gpu1"
# Plain decoding of 1,319 answers is the longest part; a pair that takes longer hangs.
PAIR_SECONDS: Final = 7200.0
TAIL: Final = 2000
PROGRAM: Final = ("-m", "specmatrix", "accuracy")
PREFIX: Final = "specmatrix: "
# How a pair's process ended: its exit status, None if it was stopped, and the end of its output.
Ending: TypeAlias = tuple[int | None, str]
Runner: TypeAlias = Callable[[ModelPair, Path], Ending]


def main_weights(
    asking: Asking, names: Sequence[str], models: Path | None, out: Path, json_: bool, run: Runner | None = None
) -> int:
    """Run the named pairs (default: all of TIER) and write the report; returns the exit status, 0 if nothing is red.

    A pair that this machine cannot run is INFRA, naming what is missing; the others still run. DataError on an invalid
    question file, ConfigError on an unknown pair.
    """
    questions = asking.questions()
    pairs = [pair_of(name) for name in names] or [pair for pair in PAIRS.values() if pair.tier == TIER]
    run = run or (lambda pair, folder: in_process(command(asking, pair, models, folder)))
    with ReportWriter(out, header_of(questions, pairs)) as writer:
        for pair, record in zip(pairs, records(pairs, out, run), strict=True):
            words = shlex.join(command(asking, pair, models, None))
            writer.write(replace(record, repro=f'specmatrix accuracy {words} --out "$(mktemp -d)"'))
    with writer.read() as report:
        view = write_run(report)
    show_run(view, out, (), json_)
    return int(view.verdict != "green")


def records(pairs: Sequence[ModelPair], out: Path, run: Runner) -> Iterator[CellResult]:
    """Yield the record of each pair; its accuracy.json stays in `out`/<pair's name>."""
    with counting(len(pairs), "checkpoint") as update:
        for pair in pairs:
            update(pair.name, 0)
            folder = out / pair.name
            # A file from an earlier run would be mistaken for this one's.
            (folder / FILES[0]).unlink(missing_ok=True)
            yield record_of(pair, folder, run(pair, folder))
            update(None)


def command(asking: Asking, pair: ModelPair, models: Path | None, folder: Path | None) -> list[str]:
    """The words after `specmatrix accuracy` that run one pair."""
    options: dict[str, Any] = {
        "--task": asking.task,
        "--checkpoint": pair.name,
        "--models": models,
        "--data": asking.data,
        "--train": asking.train,
        "--limit": asking.limit,
        "--num-fewshot": asking.num_fewshot,
        "--max-new-tokens": asking.max_new_tokens,
        "--out": folder,
    }
    return [str(word) for option, value in options.items() if value is not None for word in (option, value)]


def in_process(words: Sequence[str]) -> Ending:
    """Run `specmatrix accuracy` with these words in its own process, for at most PAIR_SECONDS."""
    process = ChildProcess([sys.executable, *PROGRAM, *words])
    try:
        code = process.wait(PAIR_SECONDS)
    finally:
        process.stop()
    return code, process.output_end(TAIL)


def record_of(pair: ModelPair, folder: Path, ending: Ending) -> CellResult:
    """A pair's record: what its process measured; INFRA if it could not run; FAIL if it crashed or did not end."""
    code, output = ending
    file = folder / FILES[0]
    if code in (0, 1) and file.is_file():
        return judged(pair, json.loads(file.read_text(encoding="utf-8")))
    last = output.strip().rpartition("\n")[2]
    if code == 2 and last.startswith(PREFIX):
        return _record(pair, "INFRA", error=last.removeprefix(PREFIX))
    how = f"did not end within {PAIR_SECONDS:g} s" if code is None else f"ended with status {code}"
    return _record(pair, "FAIL", error=f"the run {how}: {last}", traceback=output)


def judged(pair: ModelPair, measured: Mapping[str, Any]) -> CellResult:
    """The record of a pair from its accuracy.json."""
    gates = (_accuracy(pair, measured), _acceptance(measured["answers"]))
    states = {gate.state for gate in gates}
    state: CellState = "FAIL" if "FAIL" in states else "NOT MEASURED" if "NOT MEASURED" in states else "PASS"
    start = measured["starts"]["cell"]
    record = _record(pair, state, gates=gates, evidence=start["evidence"])
    own = start_record(record.start.requested, start["resolved"], "")
    text = json.dumps([own.resolved, measured["weights"]], sort_keys=True)
    return replace(
        record,
        start=replace(own, resolved_hash=hashlib.sha256(text.encode()).hexdigest()[:12]),
        seconds=sum(one["seconds"] for one in measured["starts"].values()),
        engine_starts=2,
    )


def _accuracy(pair: ModelPair, measured: Mapping[str, Any]) -> GateResult:
    """Combine all tests of the run with a check for a collapse on both sides."""
    answers, tests = measured["answers"], {test["name"]: test for test in measured["tests"]}
    n, numbers = len(answers), dict[str, Any](n=len(answers))
    for extractor, suffix in zip(EXTRACTORS, ("", "_flexible"), strict=True):
        test = tests[f"right by {extractor}"]
        numbers |= {f"accuracy{suffix}": test["cell"] / n, f"baseline{suffix}": test["baseline"] / n}
        numbers |= {f"lost{suffix}": test["lost"], f"won{suffix}": test["won"]}
    numbers["outcomes"] = "".join("01"[one["right"][EXTRACTORS[0]][1]] for one in answers)
    numbers["different_texts"] = measured["different_texts"]
    right = sum(tests[f"right by {extractor}"]["baseline"] for extractor in EXTRACTORS) / len(EXTRACTORS)
    red = [f"{name}: {test['message']}" for name, test in tests.items() if test["state"] == "FAIL"]
    red += [low] if (low := collapsed(pair.target, right, n)) else []
    thin = [f"{name}: {test['message']}" for name, test in tests.items() if test["state"] == "NOT MEASURED"]
    thin += [measured["doubt"]] if measured["doubt"] else []
    interval = wilson(tests[f"right by {EXTRACTORS[0]}"]["cell"], n)
    return GateResult(
        "accuracy", "FAIL" if red else "NOT MEASURED" if thin else "PASS", numbers, interval, "; ".join(red or thin)
    )


def _acceptance(answers: Sequence[Mapping[str, Any]]) -> GateResult:
    """Tokens per round of each answer: not judged here, but paired with another report's by `compare`."""
    measured = [one for one in answers if one["rounds"][1]]
    if not measured:
        return GateResult("acceptance", "NOT MEASURED", message="no answer had a verify round")
    emitted, rounds = ([one[name][1] for one in measured] for name in ("emitted", "rounds"))
    length, questions = sum(emitted) / sum(rounds), [one["line"] for one in measured]
    numbers = {"length": length, "emitted": emitted, "rounds": rounds, "questions": questions}
    return GateResult("acceptance", "PASS", numbers)


def _record(pair: ModelPair, state: CellState, **fields: Any) -> CellResult:  # noqa: ANN401 - fields of CellRecord
    axes = {"algorithm": pair.algorithm.lower(), "target": pair.target, "draft": pair.draft or "none"}
    return CellRecord(
        pair.name, state, StartRecord(asdict(pair.config)), axes, pair.gsm8k, **{"gates": (), "evidence": {}, **fields}
    )


def header_of(questions: Split, pairs: Sequence[ModelPair]) -> Header:
    """The header of a run of these pairs: `data_hash` covers the questions, `lock_hash` the pairs' configurations."""
    rows = [(asdict(pair.config), [(model.repo, model.revision) for model in pair.models.values()]) for pair in pairs]
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:12]
    header = run_header(TIER, WEIGHTS, 0, ())
    rules = {"accuracy": {"alpha": ALPHA, "collapse": COLLAPSE}}
    hashes = {"data_hash": questions.digest, "lock_hash": digest, "zoo_hash": digest}
    return replace(header, **hashes, thresholds=rules, axes={})
