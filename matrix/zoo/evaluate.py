"""Measures stored checkpoints: greedy accuracy of targets, acceptance lengths of drafts.

`python -m specmatrix.matrix.zoo.evaluate` measures the committed checkpoints again and rewrites their cards, the
checksums and the data files.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer

from specmatrix.matrix.zoo import card, checkpoint
from specmatrix.matrix.zoo.acceptance import Acceptance, block_runs, head_runs, measure, standalone_runs
from specmatrix.matrix.zoo.card import Score
from specmatrix.matrix.zoo.corpus import Sequences
from specmatrix.matrix.zoo.decode import greedy
from specmatrix.matrix.zoo.dflash_net import DflashNet
from specmatrix.matrix.zoo.gsm_mini import LEVELS, Problem, final_of, problems, prompt_of, write_corpus, write_jsonl
from specmatrix.matrix.zoo.heads import LanguageHead
from specmatrix.matrix.zoo.losses import BundledNet
from specmatrix.matrix.zoo.net import FINAL, CausalNet
from specmatrix.matrix.zoo.recipes import DATA, RECIPES, Data, Recipe
from specmatrix.matrix.zoo.registry import record

CORPUS_PROBLEMS = 64
HERE = Path(__file__).parent


def split_rows(data: Data, split: str) -> list[Problem]:
    """The problems of "test" or "heldout", as the data files hold them."""
    count = data.test_problems if split == "test" else data.heldout_problems
    return list(problems(data.seed, split, count, data.test_mix))


def corpus_rows(data: Data) -> list[Problem]:
    """The training problems of the corpus file."""
    return list(problems(data.seed, "train", CORPUS_PROBLEMS, data.test_mix))


def level_rows(data: Data, level: int) -> list[Problem]:
    """Test problems of a single level."""
    alone = [float(level == each) for each in range(LEVELS)]
    return list(problems(data.seed, "test", data.level_problems, alone))


@cache
def data_hash(data: Data) -> str:
    """Twelve hex digits over the test splits and the first thousand training problems."""
    digest = hashlib.sha256()
    for rows in (split_rows(data, "test"), split_rows(data, "heldout"), problems(data.seed, "train", 1000, data.mix)):
        for row in rows:
            digest.update(f"{row.question}\n{row.answer}\n".encode())
    return digest.hexdigest()[:12]


def score(
    net: CausalNet, tokenizer: Tokenizer, rows: Sequence[Problem], limit: int, form: str = "worked"
) -> tuple[Score, Sequences]:
    """Greedy accuracy on the final number of answers in a recipe's form, and prompts with their generated answers."""
    prompts: list[list[int]] = [tokenizer.encode(prompt_of(row.question)).ids for row in rows]
    answers = greedy(net, prompts, limit)
    right = sum(
        final_of(tokenizer.decode(answer), form) == final_of(row.answer, "worked")
        for row, answer in zip(rows, answers, strict=True)
    )
    whole = [index for index, answer in enumerate(answers) if len(answer) > 1]
    made = Sequences.of([prompts[i] + answers[i] for i in whole], [len(prompts[i]) for i in whole])
    return Score(right, len(rows)), made


def target_accuracy(net: CausalNet, tokenizer: Tokenizer, data: Data, form: str = "worked") -> dict[str, Score]:
    """Accuracy on the test split, the held-out split and each level."""
    found = {
        split: score(net, tokenizer, split_rows(data, split), data.answer_limit, form)[0]
        for split in ("test", "heldout")
    }
    for level in range(LEVELS):
        found[f"level {level}"] = score(net, tokenizer, level_rows(data, level), data.answer_limit, form)[0]
    return found


def captured_layers(recipe: Recipe) -> tuple[int, ...]:
    """The target layers whose outputs a draft reads; the final hidden state if the recipe names none."""
    return recipe.aux_layers or (FINAL,)


def draft_acceptance(
    recipe: Recipe, root: Path, target: CausalNet, answers: Sequences, device: torch.device
) -> Acceptance:
    """Accept lengths of draft `root`/NAME, or of the target's first MTP layer, on the target's answers."""
    folder, captured = root / recipe.name, captured_layers(recipe)
    if recipe.target is None:
        assert isinstance(target, BundledNet)
        ids = torch.arange(target.shape.vocab, device=device)
        return measure(answers, lambda batch: head_runs(target.bundled(0), target, captured, ids, batch), device)
    if recipe.kind == "standalone":
        net = checkpoint.read_net(folder, recipe, device)
        if recipe.parallel:
            head, ids = LanguageHead(net, recipe.mask_id), torch.arange(recipe.shape.vocab, device=device)
            return measure(answers, lambda batch: head_runs(head, target, captured, ids, batch), device)
        return measure(answers, lambda batch: standalone_runs(net, batch), device)
    draft, ids = checkpoint.read_draft(folder, recipe, target, device)
    if isinstance(draft, DflashNet):
        return measure(answers, lambda batch: block_runs(draft, target, captured, batch), device, draft.block - 1)
    return measure(answers, lambda batch: head_runs(draft, target, captured, ids, batch), device)


def figures(accepted: Acceptance) -> dict[str, object]:
    """An Acceptance in the form of a card."""
    return {"length": {str(k): round(v, 4) for k, v in accepted.length.items()}, "rate": list(accepted.rate)}


def recipe_of(recipe: Recipe, data: Data) -> dict[str, object]:
    """A recipe in the form of a card."""
    plain: dict[str, object] = json.loads(json.dumps({**asdict(recipe), "data": asdict(data)}))
    later = ("form", "parallel", "base", "problems", "dflash2", "heads")
    unset = ("worked", False, "", 0, None)
    return {name: value for name, value in plain.items() if name not in later or value not in unset}


def remeasure(root: Path, device: torch.device) -> None:
    """Measure the checkpoints under `root` on the current splits and rewrite their cards, not their weights."""
    hashed = data_hash(DATA)
    for recipe in RECIPES.values():
        folder = root / recipe.name
        known = card.read(folder)
        accuracy: dict[str, dict[str, object]] = {}
        accepted: dict[str, object] = {}
        parent = RECIPES[recipe.target or recipe.name]
        target = checkpoint.read_net(root / parent.name, parent, device)
        tokenizer = Tokenizer.from_file(str(root / parent.name / "tokenizer.json"))
        if recipe.target is None:
            measured = target_accuracy(target, tokenizer, DATA, recipe.form)
            accuracy = {split: value.as_dict() for split, value in measured.items()}
        if recipe.target or recipe.bundled_fit:
            answers = score(target, tokenizer, split_rows(DATA, "test"), DATA.answer_limit, recipe.form)[1]
            accepted = figures(draft_acceptance(recipe, root, target, answers, device))
        now = card.Card(
            known.name,
            known.kind,
            known.parameters,
            hashed,
            recipe_of(recipe, DATA),
            known.training,
            accuracy,
            accepted,
        )
        now.write(folder)
        print("\n".join(card.lines(now)), flush=True)


def main() -> None:
    """Rewrite data files, cards and checksums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=HERE / "checkpoints")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    for split in ("test", "heldout"):
        write_jsonl(HERE / "data" / f"{split}.jsonl", split_rows(DATA, split))
    write_corpus(HERE / "data" / "corpus.jsonl", corpus_rows(DATA))
    remeasure(arguments.root, torch.device(arguments.device))
    record(arguments.root)


if __name__ == "__main__":
    main()
