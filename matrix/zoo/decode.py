"""Batched greedy decoding for distillation and evaluation."""

import torch
from torch import Tensor

from specmatrix.matrix.zoo.net import Cache, CausalNet
from specmatrix.matrix.zoo.tokenizer import EOS_ID


@torch.inference_mode()
def _equal_length(model: CausalNet, prompts: Tensor, limit: int) -> list[list[int]]:
    """Greedy answers (EOS included when reached) for prompts [B, T] of one length."""
    cache = Cache(prompts.shape[1] + limit)
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


def greedy(model: CausalNet, prompts: list[list[int]], limit: int, rows: int = 4096) -> list[list[int]]:
    """Greedy answers in the order of the prompts; only prompts of equal length are batched, so none is padded."""
    device = model.lm_head.weight.device
    by_length: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(index)
    answers: list[list[int]] = [[]] * len(prompts)
    for indices in by_length.values():
        for start in range(0, len(indices), rows):
            part = indices[start : start + rows]
            block = torch.tensor([prompts[index] for index in part], device=device)
            for index, answer in zip(part, _equal_length(model, block, limit), strict=True):
                answers[index] = answer
    return answers
