"""`specmatrix accuracy`: a task's questions on a cell and on plain decoding, paired question by question; the record as
JSON and as Markdown.

The stage `weights`: the published pairs of a tier as cells of one report, each run in its own process.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec.structs import replace

from specmatrix.child_process import ChildProcess
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.accuracy.paired_run import ALPHA, FILES, Asking, Compared, of_cell, of_pair, paired_run
from specmatrix.matrix.accuracy.task import EXTRACTORS, Split, definition
from specmatrix.matrix.cover.selection import WEIGHTS
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.run.provenance import run_header, start_record
from specmatrix.matrix.zoo.published.pairs import COLLAPSE, PAIRS, ModelPair, collapsed, locate, pair_of
from specmatrix.reports.render.console import counting, print_markdown
from specmatrix.reports.render.markup import markdown as from_template
from specmatrix.reports.render.run import write_run
from specmatrix.reports.render.terminal import show_run
from specmatrix.reports.schema import CellRecord, CellResult, CellState, GateResult, Header, StartRecord
from specmatrix.reports.stats import wilson
from specmatrix.reports.store import ReportWriter, check_place, write_text

if TYPE_CHECKING:
    from specmatrix.matrix.accuracy.task import Sample

SCHEMA: Final = 2


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write accuracy.json and accuracy.md atomically. ReportError if the folder cannot be written."""
    for name, text in zip(FILES, (json.dumps(record, indent=1) + "\n", markdown(record)), strict=True):
        write_text(folder / name, text)


def markdown(record: Mapping[str, Any]) -> str:
    """A record's summary and two tables, without individual answers."""
    return from_template("accuracy.md.j2", record=record)


DEFAULT_CELL: Final = "eagle3.s3.k1.n4.v2"


def accuracy(
    data: Path,
    task: str = "gsm8k",
    train: Path | None = None,
    cell: str | None = None,
    checkpoint: list[str] | None = None,
    stage: str | None = None,
    models: Path | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    max_new_tokens: int = 256,
    out: Path | None = None,
    json_: bool = False,
) -> int:
    """0 if the gate passes, else 1. EngineError or ReportError on invalid input, and on a machine without the required
    GPU, memory or weights."""
    shots = num_fewshot if num_fewshot is not None else 5 if checkpoint or stage else 0
    asking = Asking(task, data, train, limit, shots, max_new_tokens)
    checkpoints = checkpoint or []
    check_choice(stage, cell, checkpoints, models, out)
    if stage is not None:
        assert out is not None
        definition(task)
        return main_weights(asking, checkpoints, models, out, json_)
    record = _measured(asking, cell, checkpoints, models, out)
    if json_:
        print(json.dumps({name: value for name, value in record.items() if name != "answers"}), flush=True)
    else:
        print_markdown(markdown(record))
    return 0 if record["state"] == State.PASS else 1


def _measured(
    asking: Asking, cell: str | None, checkpoints: Sequence[str], models: Path | None, out: Path | None
) -> dict[str, Any]:
    """Measure what the options select; returns the record, also written to `out` if given."""
    # A cell is checked before the questions are read, a checkpoint's files after them.
    wanted = None if checkpoints else of_cell(cell or DEFAULT_CELL)
    questions = asking.questions()
    definition(asking.task)
    if wanted is None:
        pair = pair_of(checkpoints[0])
        wanted = of_pair(pair, locate(pair, models))
    if out is not None:
        check_place(out, *FILES)
    record = measure(asking, questions, wanted)
    if out is not None:
        write_record(out, record)
    return record


def check_choice(
    stage: str | None, cell: str | None, checkpoints: Sequence[str], models: Path | None, out: Path | None
) -> None:
    """ConfigError if the options select more than one thing to measure, or one only in part."""
    if stage is not None:
        if stage != WEIGHTS:
            raise ConfigError(f"stage {shown(stage)} has no accuracy run; it must be {WEIGHTS}")
        if cell is not None:
            raise ConfigError(f"--stage {WEIGHTS} runs published checkpoints; it excludes --cell")
        if out is None:
            raise ConfigError(f"--stage {WEIGHTS} writes a report; give --out")
        return
    if checkpoints and cell is not None:
        raise ConfigError("--cell and --checkpoint are mutually exclusive")
    if len(checkpoints) > 1:
        raise ConfigError(f"--checkpoint is given {len(checkpoints)} times; several need --stage {WEIGHTS}")
    if not checkpoints and models is not None:
        raise ConfigError("--models requires --checkpoint")


def measure(asking: Asking, questions: Split, compared: Compared) -> dict[str, Any]:
    """The JSON-serialisable record of a paired run on one compute thread. EngineError as in `accuracy`."""
    # Imports torch; deferred so that an invalid command line fails fast.
    import torch

    from specmatrix.matrix.accuracy.paired_run import counts, overall, unproven

    torch.set_num_threads(1)
    answers = paired_run(asking, questions, compared)
    tests, starts = answers.tests, answers.starts
    doubt = unproven(compared.algorithm, starts["cell"]["evidence"])
    return {
        "schema": SCHEMA,
        "kind": "accuracy",
        "state": str(overall(tests, doubt)),
        "doubt": doubt,
        "task": {
            "name": asking.task,
            "source": questions.source,
            "digest": questions.digest,
            "questions": len(answers.cell),
            "asked": len(questions.asked),
            "num_fewshot": len(questions.examples),
            "max_new_tokens": asking.max_new_tokens,
        },
        "cell": compared.cell.name,
        "baseline": compared.baseline.name,
        "weights": {name: _weights(folder) for name, folder in compared.folders.items()},
        "versions": {"lm_eval": version("lm_eval"), "torch": torch.__version__},
        "starts": starts,
        "tests": [test.as_dict() for test in tests],
        "runs": {"baseline": counts(answers.baseline), "cell": counts(answers.cell)},
        **_answers(answers.baseline, answers.cell),
    }


def _answers(baseline: Sequence[Sample], cell: Sequence[Sample]) -> dict[str, Any]:
    """The answers by question; pairs of values are [baseline, cell]."""
    from specmatrix.matrix.accuracy.task import EXTRACTORS

    both = list(zip(baseline, cell, strict=True))
    return {
        "different_texts": sum(one.text != other.text for one, other in both),
        "answers": [
            {
                "line": one.line,
                "prompt_hash": one.prompt_hash,
                "right": {name: [one.right[name], other.right[name]] for name in EXTRACTORS},
                "valid": {name: [one.valid[name], other.valid[name]] for name in EXTRACTORS},
                "by_length": [one.by_length, other.by_length],
                "emitted": [each.tokens - 1 - each.retractions for each in (one, other)],
                "rounds": [one.rounds, other.rounds],
                "texts": [one.text] if one.text == other.text else [one.text, other.text],
            }
            for one, other in both
        ],
    }


def _weights(folder: Path) -> str:
    """12 hex digits over a checkpoint's weight files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while part := file.read(2**24):
                digest.update(part)
    return digest.hexdigest()[:12]


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
