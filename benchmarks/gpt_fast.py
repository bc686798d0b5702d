"""Rounds of plain decoding beside gpt-fast, whose checkout the user names; nothing of it is part of this project."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from specmatrix.benchmarks.metric import Metric, unmeasured
from specmatrix.benchmarks.pairs import interleave
from specmatrix.benchmarks.steady import PAIRS, ROUNDS, Bench, free

# How many times as fast as the peer.
GOAL: Final = 1.05
# A checkout of gpt-fast is looked for in the folder that this variable names.
CHECKOUT: Final = "GPT_FAST"
# What a checkout is asked for, with a file of each name: its model, its decode step, and what the latter imports.
FILES: Final = ("model", "generate", "tokenizer")
# Positions that it keeps behind the prompt.
BEHIND: Final = 256


def gpt_fast(bench: Bench, model_name: str) -> Metric:
    """Rounds per second over those of the checkout's own decode step, compiled as its authors do, at one context.

    It samples without top-k, its cheapest way; ours takes the best token.
    """
    name = f"{bench.name}_decode_over_gpt_fast"
    folder = os.environ.get(CHECKOUT)
    if not folder:
        return unmeasured(name, GOAL, f"{CHECKOUT} names no folder with a checkout of gpt-fast")
    missing = [f"{file}.py" for file in FILES if not (Path(folder) / f"{file}.py").is_file()]
    if missing:
        return unmeasured(name, GOAL, f"the folder {folder} that {CHECKOUT} names has no {missing[0]} of gpt-fast")
    with bench.decoding(1) as ours:
        pairs = interleave(ours.turn, gpt_fast_rounds(generate_module(Path(folder)), model_name, bench), PAIRS, warm=3)
    free()
    return pairs.metric(name, GOAL, note=f"theirs {min(pairs.theirs) / ROUNDS * 1e3:.2f} ms a token at best")


def generate_module(folder: Path) -> ModuleType:
    """generate.py of a checkout, which finds its neighbours beside it and sets the compiler as its authors want it.

    The modules stay, as the compiler asks for them by name.
    """
    for file in FILES:
        sys.modules.pop(file, None)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(str(folder))


def gpt_fast_rounds(theirs: ModuleType, model_name: str, bench: Bench) -> Callable[[], None]:
    """ROUNDS tokens of random weights behind a context of the bench's prompt."""
    with torch.device("meta"):
        model = theirs.Transformer.from_name(model_name).to(torch.bfloat16)
    model = model.to_empty(device=bench.device).eval()
    for weight in model.parameters():
        weight.data.normal_(0, 0.02)
    with torch.device(bench.device):
        model.setup_caches(1, bench.prompt + BEHIND)
    masks = {}
    if "block_mask" in inspect.signature(theirs.decode_one_token).parameters:
        length = model.max_seq_length
        masks["block_mask"] = theirs.create_block_mask(theirs.causal_mask, 1, 1, length, length, device=bench.device)
    step = torch.compile(theirs.decode_one_token, mode="reduce-overhead", fullgraph=True)

    def rounds() -> None:
        token = torch.ones(1, 1, dtype=torch.int, device=bench.device)
        position = torch.tensor([bench.prompt], device=bench.device)
        with torch.no_grad(), sdpa_kernel([SDPBackend.MATH]):
            for _ in range(ROUNDS):
                token = step(model, token, position, **masks)[0].clone()
                position += 1
        token.tolist()

    return rounds
