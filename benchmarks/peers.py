"""Generation on one GPU against transformers, compiled, and against gpt-fast from a user's checkout."""

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
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from specmatrix.benchmarks.metric import Metric, interleave, unmeasured
from specmatrix.benchmarks.steady import PAIRS, ROUNDS, Bench, free, freed
from specmatrix.engine.core.schedule.request import SamplingParams

# New tokens of transformers' generation, and goals for the speed-up over each peer.
TOKENS: Final = 64
TRANSFORMERS_GOAL: Final = 1.25
GPT_FAST_GOAL: Final = 1.05
# Environment variable with the folder of a gpt-fast checkout, and the files of it that a decode step needs.
CHECKOUT: Final = "GPT_FAST"
FILES: Final = ("model", "generate", "tokenizer")
# KV positions allocated after the prompt.
BEHIND: Final = 256


def transformers(bench: Bench) -> Metric:
    """Time of transformers' greedy generation with a static cache and compiled steps over ours, prefill included."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    theirs = AutoModelForCausalLM.from_pretrained(bench.target, dtype="bfloat16").to(bench.device).eval()
    theirs.generation_config.eos_token_id = None  # it never stops early
    params = SamplingParams(max_new_tokens=TOKENS, ignore_eos=True)
    prompts = bench.prompts(theirs.config.vocab_size, 1)
    ids = torch.tensor(prompts, device=bench.device)
    fixed = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}

    def their() -> object:
        # Reading the tokens synchronises.
        return theirs.generate(
            ids, attention_mask=torch.ones_like(ids), cache_implementation="static", **fixed
        ).tolist()

    with freed(bench.engine(1)) as ours:
        pairs = interleave(lambda: ours.generate(prompts, params), their, PAIRS, warm=3)
    note = f"theirs {min(pairs.theirs) / TOKENS * 1e3:.1f} ms a token at best, prompt included"
    return pairs.metric(f"{bench.name}_generate_over_transformers_compiled", TRANSFORMERS_GOAL, note=note)


def gpt_fast(bench: Bench, model_name: str) -> Metric:
    """Rounds per second over those of gpt-fast's decode step, compiled as by its authors, at one context length.

    gpt-fast samples without top-k, its cheapest mode; ours is greedy.
    """
    name, folder = f"{bench.name}_decode_over_gpt_fast", Path(os.environ.get(CHECKOUT, ""))
    if missing := [f"{file}.py" for file in FILES if not (folder / f"{file}.py").is_file()]:
        return unmeasured(
            name, GPT_FAST_GOAL, f"{CHECKOUT} must name the folder of a gpt-fast checkout, with {missing[0]}"
        )
    with bench.decoding(1) as ours:
        theirs = gpt_fast_rounds(generate_module(folder), model_name, bench)
        pairs = interleave(ours.timed_rounds, theirs, PAIRS, warm=3)
    free()
    return pairs.metric(name, GPT_FAST_GOAL, note=f"theirs {min(pairs.theirs) / ROUNDS * 1e3:.2f} ms a token at best")


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
