"""Token sequences of gsm-mini: generated in parallel, grouped into buckets of equal padded length."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from specmatrix.matrix.zoo.gsm_mini import in_form, problem, prompt_of
from specmatrix.matrix.zoo.registry import Data
from specmatrix.matrix.zoo.tokenizer import EOS_ID

CHUNK = 4096
WIDTH = 32


@dataclass(frozen=True, slots=True)
class Sequences:
    """Ragged sequences: `flat` uint16 tokens end to end; `lengths` and `prompts` (BOS included) per sequence."""

    flat: npt.NDArray[np.uint16]
    lengths: npt.NDArray[np.int32]
    prompts: npt.NDArray[np.int32]

    @staticmethod
    def of(rows: Sequence[Sequence[int]], prompts: Sequence[int]) -> "Sequences":
        """From rows of token ids and their prompt lengths."""
        flat = np.fromiter((token for row in rows for token in row), dtype=np.uint16)
        return Sequences(flat, np.array([len(row) for row in rows], np.int32), np.array(prompts, np.int32))

    @staticmethod
    def join(parts: Sequence["Sequences"]) -> "Sequences":
        """Concatenate."""
        return Sequences(
            np.concatenate([part.flat for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.prompts for part in parts]),
        )

    def part(self, first: int, last: int) -> "Sequences":
        """Sequences `first` to `last`, exclusive."""
        ends = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        return Sequences(self.flat[ends[first] : ends[last]], self.lengths[first:last], self.prompts[first:last])

    def rows(self) -> list[list[int]]:
        """The sequences as lists of token ids."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        return [self.flat[end - length : end].tolist() for end, length in zip(ends, self.lengths, strict=True)]


def _chunk(tokenizer_json: str, data: Data, last: int, form: str, start: int) -> Sequences:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    made = [problem(data.seed, "train", index, data.mix) for index in range(start, min(start + CHUNK, last))]
    prompts = tokenizer.encode_batch([prompt_of(each.question) for each in made])
    answers = tokenizer.encode_batch([f" {in_form(each.answer, form)}" for each in made], add_special_tokens=False)
    rows = [[*prompt.ids, *answer.ids, EOS_ID] for prompt, answer in zip(prompts, answers, strict=True)]
    return Sequences.of(rows, [len(prompt.ids) for prompt in prompts])


def training_sequences(tokenizer_json: str, data: Data, first: int, count: int, form: str = "worked") -> Sequences:
    """`count` training problems from number `first`, their answers in a recipe's form, tokenised on all cores;
    independent of the number of cores."""
    starts = range(first, first + count, CHUNK)
    work = partial(_chunk, tokenizer_json, data, first + count, form)
    if len(starts) == 1:
        return work(starts[0])
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with multiprocessing.get_context("fork").Pool(min(len(os.sched_getaffinity(0)), len(starts))) as pool:
        return Sequences.join(pool.map(work, starts, chunksize=1))


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens [B, T] int64 padded with EOS, lengths [B] and prompts [B] int64."""

    tokens: torch.Tensor
    lengths: torch.Tensor
    prompts: torch.Tensor


class Buckets:
    """Sequences grouped by length rounded up to WIDTH, resident on the device."""

    def __init__(self, sequences: Sequences, device: torch.device) -> None:
        padded = -(-sequences.lengths // WIDTH) * WIDTH
        ends = np.cumsum(sequences.lengths, dtype=np.int64)
        flat = np.append(sequences.flat, np.uint16(EOS_ID)).astype(np.int16)
        self.groups: list[Batch] = []
        for width in sorted(set(padded.tolist())):
            chosen = np.flatnonzero(padded == width)
            columns = np.arange(width)[None, :]
            starts = (ends - sequences.lengths)[chosen][:, None]
            inside = columns < sequences.lengths[chosen][:, None]
            tokens = flat[np.where(inside, starts + columns, len(flat) - 1)]
            self.groups.append(
                Batch(
                    torch.from_numpy(tokens).to(device),
                    torch.from_numpy(sequences.lengths[chosen]).long().to(device),
                    torch.from_numpy(sequences.prompts[chosen]).long().to(device),
                )
            )

    def epochs(self, batch_tokens: int, seed: int) -> Iterator[Batch]:
        """Endless batches of about `batch_tokens` padded tokens; an epoch visits every sequence once, shuffled."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            plan: list[tuple[int, torch.Tensor]] = []
            for number, group in enumerate(self.groups):
                rows = max(1, batch_tokens // group.tokens.shape[1])
                order = torch.randperm(len(group.tokens), generator=generator).to(group.tokens.device)
                plan += [(number, part) for part in torch.split(order, rows)]
            for position in torch.randperm(len(plan), generator=generator).tolist():
                number, part = plan[position]
                group = self.groups[number]
                yield Batch(group.tokens[part].long(), group.lengths[part], group.prompts[part])
