"""Measures stored checkpoints: greedy accuracy of targets. What drafts accept is in `absolute.py`.

`python -m specmatrix.matrix.zoo.evaluate` measures the committed checkpoints again and rewrites their cards, the
checksums and the data files.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from specmatrix.matrix.zoo import card, checkpoint
from specmatrix.matrix.zoo.card import Score
from specmatrix.matrix.zoo.corpus import Sequences
from specmatrix.matrix.zoo.gsm_mini import LEVELS, Problem, final_of, problems, prompt_of, write_corpus, write_jsonl
from specmatrix.matrix.zoo.net import FINAL, Cache, CausalNet
from specmatrix.matrix.zoo.registry import DATA, RECIPES, Data, Recipe, record
from specmatrix.matrix.zoo.tokenizer import EOS_ID


@torch.inference_mode()
def _block(model: CausalNet, prompts: Tensor, padding: Tensor, limit: int) -> list[list[int]]:
    """Greedy answers (EOS included when reached) for prompts [B, T] with padding [B] in front."""
    cache = Cache(padding)
    tokens, made = prompts, []
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    for step in range(limit):
        logits, _ = model(tokens, cache)
        chosen = logits[:, -1].argmax(-1)
        made.append(chosen)
        ended |= chosen == EOS_ID
        if step % 8 == 7 and bool(ended.all()):
            break
        tokens = chosen[:, None]
    answers = torch.stack(made, 1).tolist()
    return [row[: row.index(EOS_ID) + 1] if EOS_ID in row else row for row in answers]


def greedy(model: CausalNet, prompts: list[list[int]], limit: int, rows: int = 16384) -> list[list[int]]:
    """Greedy answers in the order of the prompts, which are padded in front."""
    device = model.lm_head.weight.device
    answers: list[list[int]] = [[]] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for start in range(0, len(order), rows):
        part = order[start : start + rows]
        padding = [len(prompts[part[-1]]) - len(prompts[index]) for index in part]
        block = [[0] * front + prompts[index] for front, index in zip(padding, part, strict=True)]
        made = _block(model, torch.tensor(block, device=device), torch.tensor(padding), limit)
        for index, answer in zip(part, made, strict=True):
            answers[index] = answer
    return answers


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
    rows = {split: split_rows(data, split) for split in ("test", "heldout")}
    rows |= {f"level {level}": level_rows(data, level) for level in range(LEVELS)}
    return {name: score(net, tokenizer, some, data.answer_limit, form)[0] for name, some in rows.items()}


def captured_layers(recipe: Recipe) -> tuple[int, ...]:
    """The target layers whose outputs a draft reads; the final hidden state if the recipe names none."""
    return recipe.aux_layers or (FINAL,)


def recipe_of(recipe: Recipe, data: Data) -> dict[str, object]:
    """A recipe in the form of a card, whose folder has the config.json."""
    plain: dict[str, object] = json.loads(json.dumps({**asdict(recipe), "data": asdict(data)}))
    del plain["config"]
    later = ("form", "parallel", "base", "problems", "dflash2", "heads")
    unset = ("worked", False, "", 0, None)
    return {name: value for name, value in plain.items() if name not in later or value not in unset}


def remeasure(root: Path, device: torch.device) -> None:
    """Measure the checkpoints under `root` on the current splits and rewrite their cards, not their weights."""
    hashed = data_hash(DATA)
    for recipe in RECIPES.values():
        folder = root / recipe.name
        accuracy: dict[str, dict[str, object]] = {}
        if recipe.target is None:
            net = checkpoint.read_net(folder, recipe, device)
            measured = target_accuracy(net, Tokenizer.from_file(str(folder / "tokenizer.json")), DATA, recipe.form)
            accuracy = {split: value.as_dict() for split, value in measured.items()}
        known = card.read(folder)
        now = replace(known, data_hash=hashed, recipe=recipe_of(recipe, DATA), accuracy=accuracy)
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
