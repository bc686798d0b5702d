"""Records what vLLM's engine says in a few cells, for the daily tests of its adapter:

    PYTHONPATH=. ~/.cache/specmatrix/vllm/bin/python -m tools.record_vllm

It runs in the environment that `specmatrix subjects install vllm` makes. Each scenario is the steps of one call of
`generate`, each step a list of outputs in the attributes that the adapter reads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from specmatrix import HOME
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.protocol import EngineCommand, SubjectRequest
from specmatrix.matrix.subjects.vllm.engine import VllmEngine
from specmatrix.matrix.subjects.vllm.subject import VllmSubject
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
)
COMPLETION: Final = ("index", "text", "token_ids", "finish_reason", "stop_reason")


def command(cell: str) -> EngineCommand:
    """What the adapter makes of a cell."""
    found = VllmSubject().translate(prepare(Cell.from_id(cell), subject="vllm"))
    assert isinstance(found, EngineCommand), found
    return found


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


def record(cell: str) -> list[list[dict[str, Any]]]:
    """The steps of a cell's asks on a new engine, in this process."""
    one = command(cell)
    engine = VllmEngine(one)
    recorder = Recorder(engine.llm)
    engine.llm = recorder
    engine.generate([ask for ask in one.asks if isinstance(ask, SubjectRequest)])
    return recorder.steps


def main() -> None:
    """Record every cell, each in its own process, or one cell to standard output."""
    if len(sys.argv) > 1:
        print(f"\n{json.dumps(record(sys.argv[1]))}")
        return
    found = {}
    for cell in CELLS:
        environment = {**os.environ, **command(cell).environment}
        words = [sys.executable, "-m", "tools.record_vllm", cell]
        done = subprocess.run(words, capture_output=True, encoding="utf-8", env=environment, check=True)
        found[cell] = json.loads(done.stdout.splitlines()[-1])
    rows = (
        {"cell": cell, "step": step, "outputs": outputs}
        for cell, steps in found.items()
        for step, outputs in enumerate(steps)
    )
    FILE.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows), encoding="utf-8")


def recorded() -> dict[str, list[list[dict[str, Any]]]]:
    """The steps of each cell, as the file has them."""
    found: dict[str, list[list[dict[str, Any]]]] = {cell: [] for cell in CELLS}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found[row["cell"]].append(row["outputs"])
    return found


if __name__ == "__main__":
    main()
