"""The record of one paired run, as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specmatrix.reports.atomic import write_text
from specmatrix.reports.render.markup import code

SCHEMA: Final = 2
FILES: Final = ("accuracy.json", "accuracy.md")


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write accuracy.json and accuracy.md atomically. ReportError if the folder cannot be written."""
    for name, text in zip(FILES, (json.dumps(record, indent=1) + "\n", markdown(record)), strict=True):
        write_text(folder / name, text)


def markdown(record: Mapping[str, Any]) -> str:
    """A record's summary and two tables, without individual answers."""
    task = record["task"]
    weights = ", ".join(f"{code(name)} ({digest})" for name, digest in record["weights"].items())
    lines = [
        f"# {task['name']}: `{record['cell']}` against `{record['baseline']}`: {record['state']}",
        "",
        f"{_number(task)} questions of {code(task['source'])} (hash {task['digest']}), "
        f"{task['num_fewshot']} examples per prompt, at most {task['max_new_tokens']} new tokens, greedy; "
        f"lm-eval {record['versions']['lm_eval']} with its own definition of the task"
        + (f", torch {record['versions']['torch']}; weights {weights}" if weights else "")
        + ". Both runs saw the same prompts (compared by hash).",
        "",
        "| of the questions | baseline | cell | lost | won | p (loss) | difference, 95 % | detectable drop | state |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for test in record["tests"]:
        low, high = (100 * bound for bound in test["difference_interval"])
        shares = [f"{test[run]:,} ({test[run] / test['n']:.2%})" for run in ("baseline", "cell")]
        lines.append(
            f"| {test['name']} | {shares[0]} | {shares[1]} | {test['lost']} | {test['won']} | {test['p']:.3g} "
            f"| {low:+.2f} to {high:+.2f} points | {_drop(test['detectable_drop'])} | {test['state']} |"
        )
    first = record["tests"][0]
    lines += [
        "",
        f"p: of sequential tests, so the run may end as soon as one is below {first['alpha']:g}; of equal engines' "
        f"runs at most {len(record['tests']) * first['alpha']:.2g} are red. Detectable drop: the smallest true drop "
        f"for which {first['power']:.0%} of runs are red, with as many questions won as here.",
    ]
    lines += ["", *(f"- {test['name']}: {test['message']}." for test in record["tests"] if test["message"])]
    lines += [f"- {record['doubt']}."] if record["doubt"] else []
    lines += ["", "| | baseline | cell |", "|---|---|---|"]
    for name, value in record["runs"]["baseline"].items():
        lines.append(f"| {name.replace('_', ' ')} | {_shown(value)} | {_shown(record['runs']['cell'][name])} |")
    lines += ["", f"Answers that differ in any character: {record['different_texts']} of {task['questions']:,}."]
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _number(task: Mapping[str, Any]) -> str:
    run, asked = task["questions"], task["asked"]
    return f"{run:,}" if run == asked else f"The first {run:,} of {asked:,}"


def _drop(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.2f} points"


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
