"""`specmatrix zoo`: list, verify, train and measure the fixture models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.zoo import absolute, card, registry
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from specmatrix.matrix.zoo.questions import read_questions
from specmatrix.matrix.zoo.recipes import PLANNED, RECIPES
from specmatrix.matrix.zoo.registry import CHECKPOINTS
from specmatrix.options import Json, Minutes
from specmatrix.reports.render.console import print_answer
from specmatrix.reports.render.progress import counting, waiting
from specmatrix.temp_dir import TempDir

if TYPE_CHECKING:  # the help of the commands needs no torch
    from specmatrix.matrix.zoo.lengths import Length


def list_models(json_: Json = False) -> int:
    """Print the card of every model, or a JSON list of them. ConfigError if one is missing."""
    cards = []
    for name in RECIPES:
        if not (CHECKPOINTS / name / "card.json").is_file():
            raise ConfigError(
                f"zoo model {name!r} is missing in {CHECKPOINTS}; restore it or run `specmatrix zoo train {name}`"
            )
        cards.append(card.read(CHECKPOINTS / name))
    text = "\n".join(line for each in cards for line in (*card.lines(each), *absolute.lines(each.name)))
    return print_answer([asdict(each) for each in cards], text, json_)


def verify() -> int:
    """Compare every model file with its recorded checksum, and each target's oracle with the acceptance that it must
    reach. ConfigError names the first mismatch."""
    for name in RECIPES:
        with waiting(name):
            registry.verify(name, CHECKPOINTS)
        if name in registry.TARGETS:
            absolute.verify(name)
        print(f"{name}: whole")
    return 0


def train(
    names: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help="models; default: all")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    out: Annotated[Path, typer.Option(help="folder for the checkpoints")] = Path("out/zoo"),
    minutes: Minutes = 8.0,
    quick: Annotated[bool, typer.Option("--quick", help="a few steps only, as a smoke test")] = False,
) -> int:
    """Train models from their recipes. ConfigError on an unknown name, an unavailable device or a full disk."""
    import torch
    from safetensors import SafetensorError

    from specmatrix.matrix.zoo import train as training

    names = names or list(RECIPES)
    for name in names:
        if name not in RECIPES | PLANNED:
            known = ", ".join(RECIPES | PLANNED)
            raise ConfigError(f"zoo model {shown(name)} is unknown; it must be one of {known}")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise ConfigError(f"device {shown(device)} is not available; it must be one of {there}")
    plan = training.plan_of(device, out, minutes, quick)
    try:
        with waiting(f"training {', '.join(names)}"):
            training.train(plan, names)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write checkpoints in {out}: {error}") from error
    return 0


def acceptance(
    targets: Annotated[list[str] | None, typer.Argument(metavar="TARGET", help="targets; default: all")] = None,
    data: Annotated[Path | None, typer.Option(help="questions in GSM8K format; default: gsm-mini test")] = None,
    algorithm: Annotated[list[str] | None, typer.Option(help="only this one; repeatable")] = None,
    prompts: Annotated[int, typer.Option(min=2, help="number of questions")] = 100,
    tokens: Annotated[int, typer.Option(min=2, help="longest answer in tokens")] = 128,
    json_: Json = False,
) -> int:
    """ConfigError on an invalid target, algorithm or count, DataError on an invalid file."""
    import torch

    from specmatrix.matrix.zoo.lengths import plans, table
    from specmatrix.matrix.zoo.oracle_drafts import DRAFTS

    targets, algorithms = targets or list(DRAFTS), algorithm or []
    for target in targets:
        if target not in DRAFTS:
            raise ConfigError(f"target {shown(target)} has no drafts in the zoo; it must be one of {', '.join(DRAFTS)}")
    file = data or registry.TEST
    known = dict.fromkeys(plan.algorithm for plan in plans(targets))
    for name in algorithms:
        if name not in known:
            raise ConfigError(
                f"algorithm {shown(name)} is not in the table of {', '.join(targets)}; it must be one of "
                f"{', '.join(known)}"
            )
    wanted = plans(targets, algorithms)
    registry.verify_models(name for plan in wanted for name in (plan.target, plan.draft))
    asked = [prompt_of(question.question) for question in read_questions(file)[:prompts]]
    torch.set_num_threads(1)
    rows: list[Length] = []
    with TempDir("lengths") as scratch, counting(len(wanted), "row") as update:
        for row in table(wanted, asked, tokens, scratch):
            rows.append(row)
            update(f"{row.target} {row.algorithm}", 1)
    return print_answer([row.as_dict() for row in rows], "\n".join(lines(rows, file.name, tokens)), json_)


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
