"""Generation beside transformers on one GPU: eager, static and compiled, assisted; and beside gpt-fast where it is."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.utils import logging

from benchmarks.metric import Metric, unmeasured
from benchmarks.pairs import interleave
from benchmarks.steady import PAIRS, Bench, free, freed
from engine.api import LLM
from engine.core.request import SamplingParams

# How many times as fast as the peer; and new tokens where prompts are counted.
EAGER: Final = 5.0
COMPILED: Final = (64, 1.25)
ASSISTED: Final = (32, 5.0)
DRAFTED: Final = 5
GPT_FAST: Final = 1.05
# A checkout of gpt-fast is looked for in the folder that this variable names.
CHECKOUT: Final = "GPT_FAST"
ROUNDS: Final = 16


def peers(bench: Bench, assistant: Bench) -> Iterator[Metric]:
    """Greedy tokens behind the bench's prompt, whose reading counts but for eager steps; assistant: a smaller model."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    theirs = transformers_model(bench)
    with bench.decoding(1) as decoding:
        pairs = interleave(decoding.turn, eager_rounds(theirs, bench), PAIRS, warm=2)
        note = f"theirs {min(pairs.theirs) / ROUNDS * 1e3:.1f} ms a token at best"
        yield pairs.metric(f"{bench.name}_decode_over_transformers_eager", EAGER, note=note)
    tokens, goal = COMPILED
    with freed(bench.engine(1)) as ours:
        their = generate_theirs(theirs, bench, tokens, {"cache_implementation": "static"})
        pairs = interleave(generate(ours, bench, tokens), their, PAIRS, warm=3)
    name = f"{bench.name}_generate_over_transformers_compiled"
    yield pairs.metric(name, goal, note=per_token(pairs.theirs, tokens))
    yield assisted(bench, assistant, theirs)
    del theirs
    free()


def assisted(bench: Bench, assistant: Bench, target: PreTrainedModel) -> Metric:
    """Both draft DRAFTED tokens a round with the same small model; of random weights, so a round gives one token."""
    draft = transformers_model(assistant)
    draft.generation_config.num_assistant_tokens = DRAFTED
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    # Any other value lets a draft end early.
    draft.generation_config.assistant_confidence_threshold = 0.0
    tokens, goal = ASSISTED
    asked = bench.chain(DRAFTED) | {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": assistant.target,
    }
    with freed(bench.engine(1, asked)) as ours:
        their = generate_theirs(target, bench, tokens, {"assistant_model": draft})
        pairs = interleave(generate(ours, bench, tokens), their, PAIRS, warm=3)
    note = per_token(pairs.theirs, tokens)
    return pairs.metric(f"{bench.name}_generate_over_transformers_assisted", goal, note=note)


def transformers_model(bench: Bench) -> PreTrainedModel:
    """transformers' own model of a checkpoint; it never stops at an end token."""
    model = AutoModelForCausalLM.from_pretrained(bench.target, dtype=torch.bfloat16).to(bench.device).eval()
    model.generation_config.eos_token_id = None
    return model


def eager_rounds(model: PreTrainedModel, bench: Bench) -> Callable[[], None]:
    """ROUNDS greedy tokens more behind the bench's prompt, call by call."""
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        ids = torch.tensor(bench.prompts(model.config.vocab_size, 1), device=bench.device)
        last = [model(ids, past_key_values=cache).logits[:, -1:].argmax(-1)]

    def rounds() -> None:
        with torch.inference_mode():
            for _ in range(ROUNDS):
                last[0] = model(last[0], past_key_values=cache).logits.argmax(-1)
        last[0].tolist()

    return rounds


def generate(llm: LLM, bench: Bench, tokens: int) -> Callable[[], object]:
    prompts = bench.prompts(llm.tokenizer.vocab_size, 1)
    return lambda: llm.generate(prompts, SamplingParams(max_new_tokens=tokens, ignore_eos=True))


def generate_theirs(model: PreTrainedModel, bench: Bench, tokens: int, more: dict[str, Any]) -> Callable[[], object]:
    ids = torch.tensor(bench.prompts(model.config.vocab_size, 1), device=bench.device)
    mask = torch.ones_like(ids)

    def call() -> object:
        asked = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        # Reading the tokens waits for them.
        return model.generate(ids, attention_mask=mask, **asked, **more).tolist()

    return call


def per_token(times: tuple[float, ...], tokens: int) -> str:
    return f"theirs {sorted(times)[len(times) // 2] / tokens * 1e3:.1f} ms a token, prompt included"


def gpt_fast(bench: Bench, model_name: str) -> Metric:
    """Rounds of plain decoding beside gpt-fast's model, compiled as its authors do, at the same context."""
    name = f"{bench.name}_decode_over_gpt_fast"
    folder = os.environ.get(CHECKOUT)
    if not folder:
        return unmeasured(name, GPT_FAST, f"{CHECKOUT} names no folder with a checkout of gpt-fast")
    with bench.decoding(1) as ours:
        their = gpt_fast_rounds(model_module(Path(folder)), model_name, bench)
        pairs = interleave(ours.turn, their, PAIRS, warm=3)
    free()
    return pairs.metric(name, GPT_FAST, note=f"theirs {min(pairs.theirs) / ROUNDS * 1e3:.2f} ms a token at best")


def model_module(folder: Path) -> ModuleType:
    """model.py of a checkout."""
    spec = importlib.util.spec_from_file_location("gpt_fast_model", folder / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def gpt_fast_rounds(module: ModuleType, model_name: str, bench: Bench) -> Callable[[], None]:
    """ROUNDS greedy tokens, random weights, behind a context of the bench's prompt."""
    with torch.device("meta"):
        model = module.Transformer.from_name(model_name).to(torch.bfloat16)
    model = model.to_empty(device=bench.device).eval()
    for weight in model.parameters():
        weight.data.normal_(0, 0.02)
    with torch.device(bench.device):
        model.setup_caches(1, bench.prompt + 256)

    def forward(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        best: torch.Tensor = model(token, position)[:, -1].argmax(-1, keepdim=True)
        return best

    compiled = torch.compile(forward, mode="reduce-overhead", fullgraph=True)

    def rounds() -> None:
        token = torch.ones(1, 1, dtype=torch.int64, device=bench.device)
        position = torch.tensor([bench.prompt], device=bench.device)
        tuned = torch._inductor.config.patch(coordinate_descent_tuning=True)
        with torch.no_grad(), tuned, sdpa_kernel([SDPBackend.MATH]):
            for _ in range(ROUNDS):
                token = compiled(token, position).clone()
                position += 1
        token.tolist()

    return rounds
