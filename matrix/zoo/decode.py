"""Batched greedy decoding for distillation and evaluation."""

import torch
from torch import Tensor

from specmatrix.matrix.zoo.net import Cache, CausalNet
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
