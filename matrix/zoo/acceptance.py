"""Accept lengths of a draft on the target's own greedy answers, for chains and blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from specmatrix.matrix.zoo.corpus import Batch, Buckets, Sequences
from specmatrix.matrix.zoo.dflash_net import DflashNet
from specmatrix.matrix.zoo.heads import Head, unroll
from specmatrix.matrix.zoo.net import CausalNet

MAX_DEPTH = 7
LENGTHS = (1, 2, 3, 5, 7)
# Blocks of one sequence per forward.
BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`length[k]`: tokens per round (bonus included) with k draft steps.

    `rate[j]`: acceptance of draft j+1 given that all before it were accepted.
    """

    length: dict[int, float]
    rate: tuple[float, ...]


Runs = Callable[[Batch], torch.Tensor]


@torch.inference_mode()
def standalone_runs(net: CausalNet, batch: Batch) -> torch.Tensor:
    """[B, T]: consecutive correct drafts after each last known token L; the draft's input has no BOS."""
    logits, _ = net(batch.tokens[:, 1:])
    right = torch.zeros_like(batch.tokens, dtype=torch.bool)
    right[:, 2:] = logits[:, :-1].argmax(-1) == batch.tokens[:, 2:]
    runs = torch.zeros_like(batch.tokens)
    alive = torch.ones_like(right)
    for ahead in range(1, MAX_DEPTH + 1):
        alive = alive & torch.nn.functional.pad(right[:, ahead:], (0, min(ahead, right.shape[1])))[:, : right.shape[1]]
        runs += alive
    return runs


@torch.inference_mode()
def head_runs(head: Head, target: CausalNet, aux: tuple[int, ...], kept: torch.Tensor, batch: Batch) -> torch.Tensor:
    """As `standalone_runs`; for known tokens 0..L slot L-1 proposes first."""
    _, states = target(batch.tokens, aux=aux)
    assert states is not None
    runs = torch.zeros_like(batch.tokens)
    alive = torch.ones_like(batch.tokens[:, :-1], dtype=torch.bool)
    for step, (_, logits) in enumerate(unroll(head, batch.tokens, states, MAX_DEPTH)):
        chosen = kept[logits.argmax(-1)]
        truth = torch.nn.functional.pad(batch.tokens[:, 2 + step :], (0, 1 + step), value=-1)[:, : chosen.shape[1]]
        alive = alive & (chosen == truth)
        runs[:, 1:] += alive
    return runs


@torch.inference_mode()
def block_runs(net: DflashNet, target: CausalNet, aux: tuple[int, ...], batch: Batch) -> torch.Tensor:
    """As `standalone_runs`, for a block after every token; at most block - 1."""
    _, states = target(batch.tokens, aux=aux)
    length = batch.tokens.shape[1]
    runs = torch.zeros_like(batch.tokens)
    for anchors in torch.split(torch.arange(length, device=batch.tokens.device), BLOCKS):
        chosen = net(batch.tokens, states, anchors.expand(len(batch.tokens), -1)).argmax(-1)
        places = anchors[:, None] + torch.arange(1, net.block, device=anchors.device)
        truth = batch.tokens[:, places.clamp(max=length - 1)].masked_fill(places >= length, -1)
        runs[:, anchors] = (chosen == truth).cumprod(-1).sum(-1)
    return runs


def _rounds(runs: npt.NDArray[np.int64], prompt: int, length: int, steps: int) -> tuple[list[int], list[int]]:
    """Per round: accepted drafts, and drafts that fit before the end of the answer."""
    accepted, room = [], []
    last = prompt
    while last < length - 1:
        possible = min(steps, length - 1 - last)
        got = min(int(runs[last]), possible)
        accepted.append(got)
        room.append(possible)
        last += got + 1
    return accepted, room


def measure(answers: Sequences, runs_of: Runs, device: torch.device, longest: int = MAX_DEPTH) -> Acceptance:
    """Acceptance over all rounds of all answers; a final round counts only the tokens up to the end."""
    rows: list[tuple[npt.NDArray[np.int64], int, int]] = []
    for group in Buckets(answers, device).groups:
        for part in torch.split(torch.arange(len(group.tokens), device=device), 256):
            batch = Batch(group.tokens[part].long(), group.lengths[part], group.prompts[part])
            found = runs_of(batch).cpu().numpy()
            rows += zip(found, batch.prompts.tolist(), batch.lengths.tolist(), strict=True)
    length: dict[int, float] = {}
    for steps in [each for each in LENGTHS if each <= longest]:
        emitted, rounds = 0, 0
        for runs, prompt, end in rows:
            accepted, _ = _rounds(runs, prompt, end, steps)
            emitted += end - 1 - prompt
            rounds += len(accepted)
        length[steps] = emitted / max(rounds, 1)
    return Acceptance(length, _rates(rows, longest))


def _rates(rows: Sequence[tuple[npt.NDArray[np.int64], int, int]], longest: int) -> tuple[float, ...]:
    reached, passed = np.zeros(longest), np.zeros(longest)
    for runs, prompt, end in rows:
        for accepted, room in zip(*_rounds(runs, prompt, end, longest), strict=True):
            reached[: min(accepted + 1, room)] += 1
            passed[:accepted] += 1
    return tuple((passed / np.maximum(reached, 1)).round(4).tolist())
