"""`specmatrix zoo acceptance`: the table of acceptance lengths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from specmatrix.engine.temp_dir import TempDir
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from specmatrix.matrix.zoo.lengths import Length, plans, table
from specmatrix.matrix.zoo.oracle_drafts import DRAFTS
from specmatrix.matrix.zoo.questions import read_questions
from specmatrix.matrix.zoo.registry import TEST, verify_models
from specmatrix.reports.render.progress import counting


def acceptance(
    targets: Sequence[str], algorithms: Sequence[str], data: Path | None, prompts: int, tokens: int, as_json: bool
) -> int:
    """Measure and print. ConfigError on an invalid target, algorithm or count, DataError on an invalid file."""
    for target in targets:
        if target not in DRAFTS:
            raise ConfigError(f"target {shown(target)} has no drafts in the zoo; it must be one of {', '.join(DRAFTS)}")
    for name, value in (("prompts", prompts), ("tokens", tokens)):
        if value < 2:
            raise ConfigError(f"{name} must be at least 2, got {value}")
    chosen, file = list(targets) or list(DRAFTS), data or TEST
    known = dict.fromkeys(plan.algorithm for plan in plans(chosen))
    for name in algorithms:
        if name not in known:
            raise ConfigError(
                f"algorithm {shown(name)} is not in the table of {', '.join(chosen)}; it must be one of "
                f"{', '.join(known)}"
            )
    wanted = plans(chosen, algorithms)
    verify_models(name for plan in wanted for name in (plan.target, plan.draft))
    asked = [prompt_of(question.question) for question in read_questions(file)[:prompts]]
    torch.set_num_threads(1)
    rows: list[Length] = []
    with TempDir("lengths") as scratch, counting(len(wanted), "row") as update:
        for row in table(wanted, asked, tokens, scratch):
            rows.append(row)
            update(f"{row.target} {row.algorithm}", 1)
    if as_json:
        print(json.dumps([row.as_dict() for row in rows]))
    else:
        print("\n".join(lines(rows, file.name, tokens)))
    return 0


def lines(rows: Sequence[Length], source: str, tokens: int) -> list[str]:
    """The table as Markdown."""
    count = rows[0].prompts
    out = [
        f"Tokens per verify round on {count} prompts of {source}: greedy, float32, at most {tokens} new tokens; "
        "95 % interval over prompts.",
        "",
        "| target | algorithm | draft | steps / topk / nodes | rounds | tokens per round | 95 % | accepted per draft |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rates = " ".join(f"{rate:.0%}" for rate in row.rates)
        looked = "".join(f", {name} {value}" for name, value in row.ngram)
        shape = f"{row.steps} / {row.topk} / {row.draft_tokens}{looked}"
        out.append(
            f"| {row.target} | {row.algorithm} | {row.draft} | {shape} | {row.rounds:,} | {row.length:.2f} "
            f"| {row.low:.2f} to {row.high:.2f} | {rates} |"
        )
    return out
