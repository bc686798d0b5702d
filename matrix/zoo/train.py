"""Train the zoo: `python -m matrix.zoo.train all --device cuda --out DIR --minutes 8` (or one name, after its target)."""

import argparse
import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from matrix.zoo import checkpoint, losses
from matrix.zoo.acceptance import Acceptance, eagle_runs, measure, standalone_runs
from matrix.zoo.card import Card, Score
from matrix.zoo.corpus import Batch, Buckets, Sequences, training_sequences
from matrix.zoo.decode import greedy
from matrix.zoo.eagle_net import EagleNet
from matrix.zoo.fit import Trained, optimise
from matrix.zoo.gsm_mini import Problem, problems, prompt_of
from matrix.zoo.net import LlamaNet
from matrix.zoo.recipes import DATA, RECIPES, SMOKE_DATA, Data, Recipe, smoke
from matrix.zoo.tokenizer import BOS_ID, EOS_ID

HERE = Path(__file__).parent
ANSWER_LIMIT = 320


@dataclass(frozen=True, slots=True)
class Plan:
    """Where and how long: `seconds` of wall clock are shared out by the recipes' `share`."""

    device: torch.device
    out: Path
    seconds: float
    data: Data
    recipes: dict[str, Recipe]
    started: float

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def seconds_for(self, recipe: Recipe) -> float:
        """The recipe's share, cut so that a late start still leaves time to save and score."""
        left = self.started + 1.15 * self.seconds - time.monotonic() - 20.0
        return max(5.0, min(recipe.fit.share * self.seconds, left))

    def tokenizer_json(self) -> str:
        return (HERE / "data" / "tokenizer.json").read_text(encoding="utf-8")


def data_hash(data: Data) -> str:
    """Twelve hex digits over the test splits and the first thousand training problems."""
    digest = hashlib.sha256()
    for split, count in (("test", data.test_problems), ("heldout", data.heldout_problems), ("train", 1000)):
        for row in problems(data.seed, split, count, data.mix):
            digest.update(f"{row.question}\n{row.answer}\n".encode())
    return digest.hexdigest()[:12]


def score(net: LlamaNet, tokenizer: Tokenizer, rows: Sequence[Problem]) -> tuple[Score, dict[str, str], Sequences]:
    """Greedy accuracy on the final `#### n`, its split by level and by steps as text, and the generated sequences."""
    prompts = [tokenizer.encode(prompt_of(row.question)).ids for row in rows]
    answers = greedy(net, prompts, ANSWER_LIMIT)
    right, by = 0, {"level": Counter[int](), "steps": Counter[int]()}
    of = {"level": Counter[int](), "steps": Counter[int]()}
    for row, answer in zip(rows, answers, strict=True):
        correct = tokenizer.decode(answer).rsplit("####", 1)[-1].strip() == row.answer.rsplit("####", 1)[-1].strip()
        right += correct
        for key, value in (("level", row.level), ("steps", row.steps)):
            by[key][value] += correct
            of[key][value] += 1
    text = {key: " ".join(f"{value}:{by[key][value]}/{of[key][value]}" for value in sorted(of[key])) for key in of}
    whole = [index for index, answer in enumerate(answers) if len(answer) > 1]
    return (
        Score(right, len(rows)),
        text,
        Sequences.of([prompts[i] + answers[i] for i in whole], [len(prompts[i]) for i in whole]),
    )


def _training(done: Trained, plan: Plan) -> dict[str, object]:
    name = torch.cuda.get_device_name() if plan.device.type == "cuda" else "cpu"
    return {**asdict(done), "seconds": round(done.seconds, 1), "loss": round(done.loss, 5), "device": name, "torch": torch.__version__}


def _card(recipe: Recipe, module: nn.Module, done: Trained, plan: Plan, accuracy: dict[str, Score], accepted: Acceptance | None) -> Card:
    return Card(
        recipe.name,
        recipe.kind,
        sum(parameter.numel() for parameter in module.parameters()),
        data_hash(plan.data),
        json.loads(json.dumps({**asdict(recipe), "data": asdict(plan.data)})),
        _training(done, plan),
        {split: value.as_dict() for split, value in accuracy.items()},
        {} if accepted is None else {"length": {str(k): round(v, 4) for k, v in accepted.length.items()}, "rate": list(accepted.rate)},
    )


def train_target(plan: Plan, recipe: Recipe, sequences: Sequences) -> None:
    """Train, save and score a target."""
    buckets = Buckets(sequences, plan.device)
    plan.say(f"{recipe.name}: {sequences.flat.size / 1e6:.1f} M tokens in {len(buckets.groups)} buckets")
    torch.manual_seed(recipe.seed)
    net = LlamaNet(recipe.shape).to(plan.device)
    batches = buckets.epochs(recipe.fit.batch_tokens, recipe.seed)
    done = optimise(
        net, recipe.fit, plan.seconds_for(recipe), batches,
        lambda batch: losses.language(net, batch, recipe.fit.prompt_weight), plan.say,
    )  # fmt: skip
    folder = plan.out / recipe.name
    checkpoint.write(folder, recipe, net, plan.tokenizer_json())
    tokenizer = Tokenizer.from_str(plan.tokenizer_json())
    stored = checkpoint.read_llama(folder, recipe, plan.device)
    accuracy: dict[str, Score] = {}
    for split, count in (("test", plan.data.test_problems), ("heldout", plan.data.heldout_problems)):
        accuracy[split], text, _ = score(stored, tokenizer, list(problems(plan.data.seed, split, count, plan.data.mix)))
        low, high = accuracy[split].interval
        plan.say(f"{recipe.name}: accuracy {split} {accuracy[split].share:.3f} [{low:.3f}, {high:.3f}]  by level {text['level']}  by steps {text['steps']}")
    _card(recipe, net, done, plan, accuracy, None).write(folder)


def own_answers(plan: Plan, target: LlamaNet, made: Sequences) -> Sequences:
    """The target's greedy answers to the problems in `made`."""
    prompts = [row[:length] for row, length in zip(made.rows(), made.prompts.tolist(), strict=True)]
    plan.say(f"greedy answers to {len(prompts):,} problems")
    answers = greedy(target, prompts, ANSWER_LIMIT)
    ended = [index for index, answer in enumerate(answers) if answer[-1] == EOS_ID]
    plan.say(f"{len(ended):,} answers ended by themselves")
    chosen = ended or range(len(prompts))
    return Sequences.of([prompts[i] + answers[i] for i in chosen], [len(prompts[i]) for i in chosen])


def test_answers(plan: Plan, target: LlamaNet) -> Sequences:
    """The target's greedy answers to the test split, on which acceptance is measured."""
    rows = list(problems(plan.data.seed, "test", plan.data.test_problems, plan.data.mix))
    return score(target, Tokenizer.from_str(plan.tokenizer_json()), rows)[2]


def train_standalone(plan: Plan, recipe: Recipe, target: LlamaNet, answers: Sequences) -> None:
    """Train a small Llama on the target's answers; half of the batches lack BOS, as the engine's drafts do."""
    buckets = Buckets(answers, plan.device)
    torch.manual_seed(recipe.seed)
    net = LlamaNet(recipe.shape).to(plan.device)
    coin = torch.Generator().manual_seed(recipe.seed)

    def loss_of(batch: Batch) -> Tensor:
        without_first = bool(torch.rand((), generator=coin) < 0.5)
        return losses.distilled(net, target, batch, recipe.fit.prompt_weight, without_first)

    plan.say(f"{recipe.name}: {answers.flat.size / 1e6:.1f} M tokens")
    done = optimise(net, recipe.fit, plan.seconds_for(recipe), buckets.epochs(recipe.fit.batch_tokens, recipe.seed), loss_of, plan.say)
    folder = plan.out / recipe.name
    checkpoint.write(folder, recipe, net, plan.tokenizer_json())
    stored = checkpoint.read_llama(folder, recipe, plan.device)
    accepted = measure(test_answers(plan, target), lambda batch: standalone_runs(stored, batch), plan.device)
    _report(plan, recipe, accepted)
    _card(recipe, net, done, plan, {}, accepted).write(folder)


def frequent(answers: Sequences, size: int) -> Tensor:
    """The `size` most frequent token ids, ascending; ties go to the lower id."""
    counts = torch.bincount(torch.from_numpy(answers.flat.astype("int64")), minlength=size)
    counts[BOS_ID] = -1
    return torch.argsort(counts, descending=True, stable=True)[:size].sort().values


def train_eagle3(plan: Plan, recipe: Recipe, target: LlamaNet, answers: Sequences) -> None:
    """Train the EAGLE3 head on the target's states over its own answers."""
    buckets = Buckets(answers, plan.device)
    torch.manual_seed(recipe.seed)
    aux_width = len(recipe.aux_layers) * target.shape.hidden
    net = EagleNet(recipe.shape, aux_width, recipe.draft_vocab).to(plan.device)
    kept = frequent(answers, recipe.draft_vocab)
    on_device = kept.to(plan.device)

    def loss_of(batch: Batch) -> Tensor:
        return losses.unrolled(net, target, batch, recipe.aux_layers, on_device, recipe.unroll)

    plan.say(f"{recipe.name}: {answers.flat.size / 1e6:.1f} M tokens")
    done = optimise(net, recipe.fit, plan.seconds_for(recipe), buckets.epochs(recipe.fit.batch_tokens, recipe.seed), loss_of, plan.say)
    folder = plan.out / recipe.name
    checkpoint.write(folder, recipe, net, plan.tokenizer_json(), target.shape.hidden, kept)
    stored, ids = checkpoint.read_eagle(folder, recipe, aux_width, plan.device)
    accepted = measure(test_answers(plan, target), lambda batch: eagle_runs(stored, target, recipe.aux_layers, ids, batch), plan.device)
    _report(plan, recipe, accepted)
    _card(recipe, net, done, plan, {}, accepted).write(folder)


def _report(plan: Plan, recipe: Recipe, accepted: Acceptance) -> None:
    lengths = "  ".join(f"k={steps}: {value:.3f}" for steps, value in accepted.length.items())
    plan.say(f"{recipe.name}: accept length {lengths}")
    plan.say(f"{recipe.name}: per position {' '.join(f'{rate:.3f}' for rate in accepted.rate)}")


def train(plan: Plan, names: Sequence[str]) -> None:
    """Train the named recipes in the order of RECIPES; a draft needs its target's checkpoint in the same folder."""
    data = plan.data
    wanted = [recipe for recipe in plan.recipes.values() if recipe.name in names]
    # All problems are made before the first use of a GPU: forking a process that holds one is not safe.
    first = 0 if any(recipe.target is None for recipe in wanted) else data.train_problems
    last = data.train_problems + (data.distill_problems if any(recipe.target for recipe in wanted) else 0)
    plan.say(f"generating {last - first:,} problems")
    made = training_sequences(plan.tokenizer_json(), data, first, last - first)
    plan.say(f"{made.flat.size / 1e6:.1f} M tokens")
    answers: dict[str, Sequences] = {}
    for recipe in wanted:
        if recipe.target is None:
            train_target(plan, recipe, made.part(0, data.train_problems))
            continue
        parent = plan.recipes[recipe.target]
        target = checkpoint.read_llama(plan.out / parent.name, parent, plan.device)
        if parent.name not in answers:
            answers[parent.name] = own_answers(plan, target, made.part(data.train_problems - first, last - first))
        (train_standalone if recipe.kind == "standalone" else train_eagle3)(plan, recipe, target, answers[parent.name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=["all", *RECIPES])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=HERE / "checkpoints")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--smoke", action="store_true", help="a few steps on a few problems, for tests")
    arguments = parser.parse_args()
    plan = Plan(
        torch.device(arguments.device),
        arguments.out,
        arguments.minutes * 60,
        SMOKE_DATA if arguments.smoke else DATA,
        {name: smoke(recipe) if arguments.smoke else recipe for name, recipe in RECIPES.items()},
        time.monotonic(),
    )
    train(plan, list(RECIPES) if "all" in arguments.names else arguments.names)
    plan.say("done")


if __name__ == "__main__":
    main()
