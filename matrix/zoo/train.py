"""Train the zoo from its recipes: `specmatrix zoo train`.

The training losses of each kind of model.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from specmatrix.matrix.zoo import checkpoint
from specmatrix.matrix.zoo.bundled_net import BundledNet
from specmatrix.matrix.zoo.card import Card, Score
from specmatrix.matrix.zoo.corpus import Batch, Buckets, Sequences, training_sequences
from specmatrix.matrix.zoo.evaluate import captured_layers, data_hash, greedy, recipe_of, target_accuracy
from specmatrix.matrix.zoo.heads import DflashNet, DsparkNet, Head, LanguageHead, rotated, unroll
from specmatrix.matrix.zoo.net import FINAL, CausalNet
from specmatrix.matrix.zoo.registry import CHECKPOINTS, DATA, RECIPES, SMOKE_DATA, Data, Fit, Recipe, smoke
from specmatrix.matrix.zoo.tokenizer import BOS_ID, EOS_ID

STEP_DECAY: Final = 0.9
# Weight of the MTP layers' loss while the target itself is trained (DeepSeek-V3, section 4.2).
BUNDLED_SHARE: Final = 0.3
# Weight of the distance between a draft's and the target's hidden state, added to cross-entropy.
REGRESSION: Final = 0.3
# Training blocks per sequence.
ANCHORS: Final = 12


def predicted(batch: Batch, first: Tensor | int, prompt_weight: float) -> Tensor:
    """Loss weights [B, T-1] of token i+1: 1 from token `first` of the answer, `prompt_weight` before, 0 for padding."""
    index = torch.arange(1, batch.tokens.shape[1], device=batch.tokens.device)[None, :]
    weight = torch.where(index >= batch.prompts[:, None] + first, 1.0, prompt_weight)
    return weight * (index < batch.lengths[:, None])


def cross_entropy(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean cross-entropy; logits [B, S, V], labels (ids [B, S] or distributions [B, S, V]), weight [B, S]."""
    goal = labels.flatten() if labels.dim() == 2 else labels.flatten(0, 1)
    losses = F.cross_entropy(logits.flatten(0, 1).float(), goal, reduction="none")
    return (losses * weight.flatten()).sum() / weight.sum().clamp(min=1.0)


def language_loss(net: CausalNet, batch: Batch, prompt_weight: float) -> Tensor:
    """Cross-entropy of the next token."""
    logits, _ = net(batch.tokens[:, :-1])
    return cross_entropy(logits, batch.tokens[:, 1:], predicted(batch, 0, prompt_weight))


def multi_token_loss(net: BundledNet, batch: Batch, prompt_weight: float) -> Tensor:
    """Cross-entropy of the next token, plus that of later tokens predicted by the chain of MTP layers."""
    logits, final = net(batch.tokens, aux=(FINAL,))
    weight = predicted(batch, 0, prompt_weight)
    total = cross_entropy(logits[:, :-1], batch.tokens[:, 1:], weight)
    heads = net.bundled()
    for index, (_, guesses) in enumerate(rotated(heads, batch.tokens, final)):
        slots = batch.tokens.shape[1] - 2 - index
        loss = cross_entropy(guesses[:, :slots], batch.tokens[:, 2 + index :], weight[:, 1 + index :])
        total = total + BUNDLED_SHARE / len(heads) * loss
    return total


def distilled_loss(
    net: CausalNet, target: CausalNet, batch: Batch, prompt_weight: float, without_first: bool
) -> Tensor:
    """Half on the target's distribution, half on the actual token; `without_first` drops BOS from the draft's input."""
    with torch.no_grad():
        goal, _ = target(batch.tokens[:, :-1])
    skip = int(without_first)
    logits, _ = net(batch.tokens[:, skip:-1])
    weight = predicted(batch, 0, prompt_weight)[:, skip:]
    soft = cross_entropy(logits, goal[:, skip:].float().softmax(-1), weight)
    return (soft + cross_entropy(logits, batch.tokens[:, 1 + skip :], weight)) * 0.5


def _ahead(
    made: list[tuple[Tensor, Tensor]], goal: Tensor, place: Tensor, weight: Tensor, final: Tensor | None
) -> Tensor:
    """Loss of step j at slot q, which predicts token q+2+j: goal [B, T, Vd], place [B, T] ids in the draft vocabulary,
    weight [B, T-1] for token i+1; `final` [B, T, H]: the target's state, which the draft's state should match."""
    total = torch.zeros((), device=goal.device)
    for step, (state, logits) in enumerate(made):
        slots = place.shape[1] - 2 - step
        seen = weight[:, 1 + step :]
        soft = cross_entropy(logits[:, :slots], goal[:, 1 + step : 1 + step + slots], seen)
        loss = (soft + cross_entropy(logits[:, :slots], place[:, 2 + step :], seen)) * 0.5
        if final is not None:
            apart = F.smooth_l1_loss(
                state[:, :slots].float(), final[:, 1 + step : 1 + step + slots].float(), reduction="none"
            ).mean(-1)
            loss = loss + REGRESSION * (apart * seen).sum() / seen.sum().clamp(min=1.0)
        total = total + STEP_DECAY**step * loss
    return total / sum(STEP_DECAY**step for step in range(len(made)))


def unrolled_loss(
    head: Head, target: CausalNet, batch: Batch, aux: tuple[int, ...], kept: Tensor, steps: int, resemble: bool
) -> Tensor:
    """Training-time test: per step half on the target's distribution over the draft vocabulary, half on the token.

    Tokens outside the draft vocabulary `kept` [Vd] (ascending target ids) cannot be proposed and carry no loss.
    `resemble`: also regress the head's state to the target's final state (EAGLE).
    """
    with torch.no_grad():
        goal, states = target(batch.tokens, aux=aux)
        assert states is not None
        goal = goal.float()[..., kept].softmax(-1)
        place = torch.searchsorted(kept, batch.tokens).clamp(max=len(kept) - 1)
        weight = predicted(batch, 1, 0.0) * (kept[place] == batch.tokens)[:, 1:]
    return _ahead(unroll(head, batch.tokens, states, steps), goal, place, weight, states if resemble else None)


def bundled_loss(net: BundledNet, batch: Batch, steps: int) -> Tensor:
    """Loss of both uses of MTP layers: the first one unrolled, and all of them as a chain."""
    with torch.no_grad():
        goal, final = net(batch.tokens, aux=(FINAL,))
        assert final is not None
        goal, weight = goal.float().softmax(-1), predicted(batch, 1, 0.0)
    heads = net.bundled()
    alone = _ahead(unroll(heads[0], batch.tokens, final, steps), goal, batch.tokens, weight, None)
    return alone + _ahead(rotated(heads, batch.tokens, final), goal, batch.tokens, weight, None)


def blocks_loss(net: DflashNet, target: CausalNet, batch: Batch, aux: tuple[int, ...], coin: torch.Generator) -> Tensor:
    """Blocks after random tokens of the answer: half on the target's distribution, half on the actual token."""
    ahead = net.block - 1
    with torch.no_grad():
        goal, states = target(batch.tokens, aux=aux)
        # An anchor needs a next token; positions past the end are padding and carry no loss.
        span = (batch.lengths - 1 - batch.prompts).clamp(min=1)[:, None]
        drawn = torch.rand(len(batch.tokens), ANCHORS, generator=coin, device=batch.tokens.device)
        anchors = batch.prompts[:, None] + (drawn * span).long()
        places = anchors[..., None] + torch.arange(1, net.block, device=batch.tokens.device)
        inside = places.clamp(max=batch.tokens.shape[1] - 1).flatten(1)
        decay = STEP_DECAY ** torch.arange(ahead, device=batch.tokens.device)
        weight = ((places < batch.lengths[:, None, None]) * decay).flatten(1)
        soft = goal.float().softmax(-1).gather(1, (inside - 1)[..., None].expand(-1, -1, goal.shape[-1]))
    hidden, previous = net.rows(batch.tokens, states, anchors), batch.tokens.gather(1, inside - 1).view_as(places)
    logits = net.corrected(hidden, previous).flatten(1, 2)
    hard = cross_entropy(logits, batch.tokens.gather(1, inside), weight)
    loss = (cross_entropy(logits, soft, weight) + hard) * 0.5
    if not isinstance(net, DsparkNet):
        return loss
    # A draft from q is accepted with probability sum(min(p, q)).
    share = torch.minimum(logits.detach().float().softmax(-1), soft).sum(-1).clamp(max=1.0)
    sure = F.binary_cross_entropy_with_logits(net.sure(hidden, previous).flatten(1).float(), share, reduction="none")
    return loss + (sure * weight).sum() / weight.sum().clamp(min=1.0)


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of a fit: optimiser steps, padded tokens, seconds, mean loss of the last progress interval."""

    steps: int
    tokens: int
    seconds: float
    loss: float


def rate_at(progress: float, step: int, fit: Fit) -> float:
    """Learning rate: linear warm-up, constant, then linear decay to zero over the last 60 % of the budget."""
    return fit.peak_rate * min(1.0, (step + 1) / fit.warmup) * min(1.0, (1.0 - progress) / 0.6)


def optimise(
    module: nn.Module,
    fit: Fit,
    seconds: float,
    batches: Iterator[Batch],
    loss_of: Callable[[Batch], Tensor],
    say: Callable[[str], None],
) -> Trained:
    """AdamW for `fit.steps` steps or `seconds` of wall-clock time; ArithmeticError if the loss is not finite."""
    device = next(module.parameters()).device
    cuda = device.type == "cuda"
    matrices = [p for p in module.parameters() if p.dim() >= 2]
    scales = [p for p in module.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": fit.weight_decay}, {"params": scales, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=fit.peak_rate, betas=(0.9, 0.97), fused=cuda)
    started, tokens, step = time.monotonic(), 0, 0
    window: list[Tensor] = []
    next_line, progress, mean = 0.05, 0.0, math.nan
    while progress < 1.0:
        for group in optimiser.param_groups:
            group["lr"] = rate_at(progress, step, fit)
        batch = next(batches)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = loss_of(batch)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        window.append(loss.detach())
        tokens += batch.tokens.numel()
        step += 1
        if cuda and step % 16 == 0:
            # Otherwise the host runs far ahead, and the time limit covers kernel launches, not their execution.
            torch.cuda.synchronize()
        spent = time.monotonic() - started
        progress = max(step / fit.steps, spent / seconds)
        if progress >= next_line:
            mean = torch.stack(window).float().mean().item()
            if not math.isfinite(mean):
                raise ArithmeticError(f"the loss is {mean} after {step} steps; lower the learning rate")
            say(f"  {spent:6.1f} s  step {step:6d}  loss {mean:.4f}  {tokens / spent / 1e6:.2f} M tokens/s")
            window.clear()
            next_line = progress + 0.1
    if window:
        mean = torch.stack(window).float().mean().item()
    return Trained(step, tokens, time.monotonic() - started, mean)


HERE = Path(__file__).parent
NOTHING: Final[Mapping[str, Score]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Device, output folder and budget: `seconds` of wall-clock time, divided by the fits' shares (sum: `whole`)."""

    device: torch.device
    out: Path
    seconds: float
    data: Data
    recipes: dict[str, Recipe]
    started: float
    whole: float = 1.0

    def say(self, text: str) -> None:
        """Print a line of progress with the seconds since the start."""
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def seconds_for(self, fit: Fit) -> float:
        """Seconds for one optimisation, reduced after a late start to leave time for saving and scoring."""
        left = self.started + 1.15 * self.seconds - time.monotonic() - 20.0
        return max(5.0, min(fit.share / max(1.0, self.whole) * self.seconds, left))

    def optimise(
        self, recipe: Recipe, fit: Fit, module: nn.Module, sequences: Sequences, loss_of: Callable[[Batch], Tensor]
    ) -> Trained:
        """Optimise a module of a recipe on sequences."""
        buckets = Buckets(sequences, self.device)
        self.say(f"{recipe.name}: {sequences.flat.size / 1e6:.1f} M tokens in {len(buckets.groups)} buckets")
        batches = buckets.epochs(fit.batch_tokens, recipe.seed)
        return optimise(module, fit, self.seconds_for(fit), batches, loss_of, self.say)

    def target_folder(self, name: str) -> Path:
        """The folder of the target that this plan trained, else of the committed one."""
        return self.out / name if (self.out / name / "model.safetensors").is_file() else CHECKPOINTS / name

    def tokenizer_json(self) -> str:
        """The committed tokenizer."""
        return (HERE / "data" / "tokenizer.json").read_text(encoding="utf-8")


def _finish(
    plan: TrainingPlan, recipe: Recipe, module: nn.Module, done: Trained, accuracy: Mapping[str, Score] = NOTHING
) -> None:
    name = torch.cuda.get_device_name() if plan.device.type == "cuda" else "cpu"
    training = {"seconds": round(done.seconds, 1), "loss": round(done.loss, 5), "device": name}
    card = Card(
        recipe.name,
        recipe.kind,
        sum(parameter.numel() for parameter in module.parameters()),
        data_hash(plan.data),
        recipe_of(recipe, plan.data),
        {**asdict(done), **training, "torch": torch.__version__},
        {split: value.as_dict() for split, value in accuracy.items()},
    )
    card.write(plan.out / recipe.name)
    plan.say(f"{recipe.name}: {card.accuracy}")


def train_target(plan: TrainingPlan, recipe: Recipe, sequences: Sequences, own: Sequences | None) -> Sequences | None:
    """Train, save and score a target; `own`: problems for the second optimisation, of its MTP layers, which learn from
    the target's answers. Those are returned."""
    torch.manual_seed(recipe.seed)
    net = checkpoint.new_net(recipe).to(plan.device).train()

    def loss_of(batch: Batch) -> Tensor:
        if isinstance(net, BundledNet):
            return multi_token_loss(net, batch, recipe.fit.prompt_weight)
        return language_loss(net, batch, recipe.fit.prompt_weight)

    done = plan.optimise(recipe, recipe.fit, net, sequences, loss_of)
    folder = plan.out / recipe.name
    checkpoint.write(folder, recipe, net, plan.tokenizer_json())
    # Scoring takes long; a run that is interrupted there still has a card.
    _finish(plan, recipe, net, done)
    stored = checkpoint.read_net(folder, recipe, plan.device)
    answers = None
    if own is not None:
        assert isinstance(stored, BundledNet)
        answers = train_bundled(plan, recipe, stored, own)
    tokenizer = Tokenizer.from_str(plan.tokenizer_json())
    _finish(plan, recipe, net, done, target_accuracy(stored, tokenizer, plan.data, recipe.form))
    return answers


def train_bundled(plan: TrainingPlan, recipe: Recipe, net: BundledNet, made: Sequences) -> Sequences:
    """Train the MTP layers of a stored target on its own answers, with the model frozen; save it again. The answers."""
    assert recipe.bundled_fit is not None
    layers = net.prediction.requires_grad_(True).train()
    answers = own_answers(plan, net, made)

    def loss_of(batch: Batch) -> Tensor:
        return bundled_loss(net, batch, recipe.unroll)

    done = plan.optimise(recipe, recipe.bundled_fit, layers, answers, loss_of)
    plan.say(f"MTP layers: {done}")
    checkpoint.write(plan.out / recipe.name, recipe, net, plan.tokenizer_json())
    return answers


def own_answers(plan: TrainingPlan, target: CausalNet, made: Sequences) -> Sequences:
    """The target's greedy answers to the problems in `made`."""
    prompts = [row[:length] for row, length in zip(made.rows(), made.prompts.tolist(), strict=True)]
    plan.say(f"greedy answers to {len(prompts):,} problems")
    answers = greedy(target, prompts, plan.data.answer_limit)
    ended = [index for index, answer in enumerate(answers) if answer[-1] == EOS_ID]
    plan.say(f"{len(ended):,} answers end with EOS")
    chosen = ended or range(len(prompts))
    return Sequences.of([prompts[i] + answers[i] for i in chosen], [len(prompts[i]) for i in chosen])


def train_standalone(plan: TrainingPlan, recipe: Recipe, target: CausalNet, answers: Sequences) -> None:
    """Train a small model on the target's answers; half of the batches omit BOS, as the engine's drafts do."""
    torch.manual_seed(recipe.seed)
    net = checkpoint.new_net(recipe)
    if recipe.base:
        checkpoint.start_from(plan.target_folder(recipe.base), net)
    net, coin = net.to(plan.device), torch.Generator().manual_seed(recipe.seed)
    ids = torch.arange(recipe.shape.vocab_size, device=plan.device)

    def loss_of(batch: Batch) -> Tensor:
        if recipe.parallel:
            head, captured = LanguageHead(net, recipe.mask_id), captured_layers(recipe)
            return unrolled_loss(head, target, batch, captured, ids, recipe.unroll, False)
        without_first = bool(torch.rand((), generator=coin) < 0.5)
        return distilled_loss(net, target, batch, recipe.fit.prompt_weight, without_first)

    done = plan.optimise(recipe, recipe.fit, net, answers, loss_of)
    checkpoint.write(plan.out / recipe.name, recipe, net, plan.tokenizer_json())
    _finish(plan, recipe, net, done)


def frequent(answers: Sequences, size: int) -> Tensor:
    """The `size` most frequent token ids, ascending; ties go to the lower id."""
    counts = torch.bincount(torch.from_numpy(answers.flat.astype("int64")), minlength=size)
    counts[BOS_ID] = -1
    return torch.argsort(counts, descending=True, stable=True)[:size].sort().values


def train_head(plan: TrainingPlan, recipe: Recipe, target: CausalNet, answers: Sequences) -> None:
    """Train a draft head on the target's hidden states over its own answers."""
    torch.manual_seed(recipe.seed)
    net = checkpoint.new_draft(recipe, target)
    kept = frequent(answers, recipe.draft_vocab) if recipe.draft_vocab else None
    if recipe.base:
        kept = checkpoint.start_from(plan.target_folder(recipe.base), net)
    net = net.to(plan.device)
    ids = (torch.arange(recipe.shape.vocab_size) if kept is None else kept).to(plan.device)
    coin = torch.Generator(plan.device).manual_seed(recipe.seed)

    def loss_of(batch: Batch) -> Tensor:
        if isinstance(net, DflashNet):
            return blocks_loss(net, target, batch, recipe.aux_layers, coin)
        captured, resemble = captured_layers(recipe), recipe.kind == "eagle"
        return unrolled_loss(net, target, batch, captured, ids, recipe.unroll, resemble)

    done = plan.optimise(recipe, recipe.fit, net, answers, loss_of)
    parent = plan.recipes[recipe.target or ""]
    checkpoint.write(plan.out / recipe.name, recipe, net, plan.tokenizer_json(), parent, kept)
    _finish(plan, recipe, net, done)


def train(plan: TrainingPlan, names: Sequence[str]) -> None:
    """Train the named recipes in the order of RECIPES; a draft learns from its target in the same folder, else from the
    committed one."""
    data = plan.data
    wanted = [recipe for recipe in plan.recipes.values() if recipe.name in names]
    # Generate all problems before the first use of a GPU, since forking a process with a CUDA context is not safe.
    first = 0 if any(recipe.target is None for recipe in wanted) else data.train_problems
    if first and all(recipe.problems for recipe in wanted):
        data = replace(data, distill_problems=max(recipe.problems for recipe in wanted))
    fits = [fit for recipe in wanted for fit in (recipe.fit, recipe.bundled_fit) if fit is not None]
    plan = replace(plan, whole=sum(fit.share for fit in fits))
    distilling = any(recipe.target or recipe.bundled_fit for recipe in wanted)
    last = data.train_problems + (data.distill_problems if distilling else 0)
    plan.say(f"generating {last - first:,} problems")
    forms = dict.fromkeys(recipe.form for recipe in wanted)
    every = {form: training_sequences(plan.tokenizer_json(), data, first, last - first, form) for form in forms}
    plan.say(f"{sum(made.flat.size for made in every.values()) / 1e6:.1f} M tokens")
    answers: dict[str, Sequences] = {}
    for recipe in wanted:
        made = every[recipe.form]
        own = made.part(data.train_problems - first, last - first) if distilling else None
        if recipe.target is None:
            learnt = train_target(plan, recipe, made.part(0, data.train_problems), own if recipe.bundled_fit else None)
            answers |= {} if learnt is None else {recipe.name: learnt}
            continue
        parent = plan.recipes[recipe.target]
        folder = plan.target_folder(parent.name)
        plan.say(f"{recipe.name} learns from {folder}")
        target = checkpoint.read_net(folder, parent, plan.device)
        if parent.name not in answers:
            assert own is not None
            answers[parent.name] = own_answers(plan, target, own)
        (train_standalone if recipe.kind == "standalone" else train_head)(plan, recipe, target, answers[parent.name])


def plan_of(device: str, out: Path, minutes: float, short: bool) -> TrainingPlan:
    """A plan from command-line values; `short`: few steps on few problems."""
    recipes = {name: smoke(recipe) if short else recipe for name, recipe in RECIPES.items()}
    data = SMOKE_DATA if short else DATA
    return TrainingPlan(torch.device(device), out, minutes * 60, data, recipes, time.monotonic())
