"""Generation on one GPU against transformers, compiled and assisted, and against gpt-fast from a user's checkout."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from specmatrix.benchmarks.decoding import transformers_model
from specmatrix.benchmarks.metric import Metric, interleave, unmeasured
from specmatrix.benchmarks.steady import NOTHING, PAIRS, ROUNDS, Asked, Bench, free, freed
from specmatrix.engine.core.schedule.request import SamplingParams

# New tokens, and goals for the speed-up over the peer.
COMPILED: Final = (64, 1.25)
ASSISTED: Final = (32, 5.0)
DRAFTED: Final = 5
GPT_FAST_GOAL: Final = 1.05
# Environment variable with the folder of a gpt-fast checkout, and the files of it that a decode step needs.
CHECKOUT: Final = "GPT_FAST"
FILES: Final = ("model", "generate", "tokenizer")
# KV positions allocated after the prompt.
BEHIND: Final = 256


def transformers(bench: Bench, assistant: Bench) -> Iterator[Metric]:
    """Greedy decoding after the bench's prompt, prefill included: a static cache with compiled steps, then both sides
    with the same small draft model of random weights, so that a round yields one token."""
    theirs, draft = (transformers_model(one.target, "bfloat16", one.device) for one in (bench, assistant))
    yield generation(bench, theirs, "compiled", *COMPILED, {"cache_implementation": "static"})
    draft.generation_config.num_assistant_tokens = DRAFTED
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    # With any other value a draft may end early.
    draft.generation_config.assistant_confidence_threshold = 0.0
    standalone = {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": assistant.target}
    asked = bench.chain(DRAFTED) | standalone
    yield generation(bench, theirs, "assisted", *ASSISTED, {"assistant_model": draft}, asked)
    del theirs, draft
    free()


def generation(
    bench: Bench,
    model: PreTrainedModel,
    kind: str,
    tokens: int,
    goal: float,
    more: Mapping[str, Any],
    asked: Asked = NOTHING,
) -> Metric:
    """Time of transformers' generate with the arguments `more` over that of an engine with the fields `asked`."""
    params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
    prompts = bench.prompts(model.config.vocab_size, 1)
    ids = torch.tensor(prompts, device=bench.device)
    fixed = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}

    def their() -> object:
        # Reading the tokens synchronises.
        return model.generate(ids, attention_mask=torch.ones_like(ids), **fixed, **more).tolist()

    with freed(bench.engine(1, asked)) as ours:
        pairs = interleave(lambda: ours.generate(prompts, params), their, PAIRS, warm=3)
    note = f"theirs {min(pairs.theirs) / tokens * 1e3:.1f} ms a token at best, prompt included"
    return pairs.metric(f"{bench.name}_generate_over_transformers_{kind}", goal, note=note)


def gpt_fast(bench: Bench, model_name: str) -> Metric:
    """Rounds per second over those of gpt-fast's decode step, compiled as by its authors, at one context length.

    gpt-fast samples without top-k, its cheapest mode; ours is greedy.
    """
    name, folder = f"{bench.name}_decode_over_gpt_fast", Path(os.environ.get(CHECKOUT, ""))
    missing = [f"{file}.py" for file in FILES if not (folder / f"{file}.py").is_file()]
    if missing:
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
