"""Plain decoding against gpt-fast, from a checkout that the user provides; it is not part of this project."""

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

# Speed-up over the peer.
GOAL: Final = 1.05
# Environment variable with the folder of a gpt-fast checkout.
CHECKOUT: Final = "GPT_FAST"
# Required files of a checkout: its model, its decode step, and the latter's imports.
FILES: Final = ("model", "generate", "tokenizer")
# KV positions allocated after the prompt.
BEHIND: Final = 256


def gpt_fast(bench: Bench, model_name: str) -> Metric:
    """Rounds per second over those of gpt-fast's decode step, compiled as by its authors, at one context length.

    gpt-fast samples without top-k, its cheapest mode; ours is greedy.
    """
    name = f"{bench.name}_decode_over_gpt_fast"
    folder = os.environ.get(CHECKOUT)
    if not folder:
        return unmeasured(name, GOAL, f"{CHECKOUT} must be set to the folder of a gpt-fast checkout")
    missing = [f"{file}.py" for file in FILES if not (Path(folder) / f"{file}.py").is_file()]
    if missing:
        return unmeasured(name, GOAL, f"folder {folder} ({CHECKOUT}) is no gpt-fast checkout: {missing[0]} is missing")
    with bench.decoding(1) as ours:
        pairs = interleave(
            ours.timed_rounds, gpt_fast_rounds(generate_module(Path(folder)), model_name, bench), PAIRS, warm=3
        )
    free()
    return pairs.metric(name, GOAL, note=f"theirs {min(pairs.theirs) / ROUNDS * 1e3:.2f} ms a token at best")


def generate_module(folder: Path) -> ModuleType:
    """generate.py of a checkout, with its sibling modules importable and its authors' compiler settings.

    The modules stay imported, as the compiler looks them up by name.
    """
    for file in FILES:
        sys.modules.pop(file, None)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(str(folder))


def gpt_fast_rounds(theirs: ModuleType, model_name: str, bench: Bench) -> Callable[[], None]:
    """Generates ROUNDS tokens with random weights after a context as long as the bench's prompt."""
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
