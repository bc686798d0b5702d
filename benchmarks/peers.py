"""Generation against transformers on one GPU: eager, compiled with a static cache, assisted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.utils import logging

from specmatrix.benchmarks.metric import Metric
from specmatrix.benchmarks.pairs import interleave
from specmatrix.benchmarks.steady import PAIRS, Bench, free, freed
from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import SamplingParams

# New tokens, and goals for the speed-up over the peer.
EAGER: Final = (128, 5.0)
COMPILED: Final = (64, 1.25)
ASSISTED: Final = (32, 5.0)
DRAFTED: Final = 5
ROUNDS: Final = 16


def peers(bench: Bench, assistant: Bench) -> Iterator[Metric]:
    """Greedy decoding after the bench's prompt, including its prefill except for bare steps; assistant: the draft."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    theirs = transformers_model(bench)
    yield eager_steps(bench, theirs)
    yield eager(bench, theirs)
    yield compiled(bench, theirs)
    yield assisted(bench, assistant, theirs)
    del theirs
    free()


def eager_steps(bench: Bench, theirs: PreTrainedModel) -> Metric:
    """Decode steps against calls of their model; without a goal, as on a fast host a call takes less than 5 times as
    long as reading the weights."""
    with bench.decoding(1) as decoding:
        pairs = interleave(decoding.timed_rounds, eager_rounds(theirs, bench), PAIRS, warm=2)
    note = f"theirs {min(pairs.theirs) / ROUNDS * 1e3:.1f} ms a token at best"
    return pairs.metric(f"{bench.name}_decode_over_transformers_eager_calls", None, note=note)


def eager(bench: Bench, theirs: PreTrainedModel) -> Metric:
    """Generation against transformers' default."""
    tokens, goal = EAGER
    with freed(bench.engine(1)) as ours:
        pairs = interleave(generate(ours, bench, tokens), generate_theirs(theirs, bench, tokens, {}), PAIRS, warm=2)
    return pairs.metric(f"{bench.name}_generate_over_transformers_eager", goal, note=per_token(pairs.theirs, tokens))


def compiled(bench: Bench, theirs: PreTrainedModel) -> Metric:
    """Generation against transformers with a static cache and compiled steps."""
    tokens, goal = COMPILED
    with freed(bench.engine(1)) as ours:
        their = generate_theirs(theirs, bench, tokens, {"cache_implementation": "static"})
        pairs = interleave(generate(ours, bench, tokens), their, PAIRS, warm=3)
    note = per_token(pairs.theirs, tokens)
    return pairs.metric(f"{bench.name}_generate_over_transformers_compiled", goal, note=note)


def assisted(bench: Bench, assistant: Bench, target: PreTrainedModel) -> Metric:
    """Both draft DRAFTED tokens per round with the same small model of random weights, so a round yields one token."""
    draft = transformers_model(assistant)
    draft.generation_config.num_assistant_tokens = DRAFTED
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    # With any other value a draft may end early.
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
    """ROUNDS greedy tokens after the bench's prompt, one call each, with the same context lengths every time.

    On Hopper torch may dispatch attention to cuDNN, which plans once per length: new lengths took three times as long.
    """
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        ids = torch.tensor(bench.prompts(model.config.vocab_size, 1), device=bench.device)
        first = model(ids, past_key_values=cache).logits[:, -1:].argmax(-1)

    def rounds() -> None:
        last = first
        with torch.inference_mode():
            for _ in range(ROUNDS):
                last = model(last, past_key_values=cache).logits.argmax(-1)
            cache.crop(-ROUNDS)
        last.tolist()

    return rounds


def generate(llm: LLM, bench: Bench, tokens: int) -> Callable[[], object]:
    """A call that prefills the bench's prompt and decodes `tokens` tokens."""
    prompts = bench.prompts(llm.vocab_size, 1)
    return lambda: llm.generate(prompts, SamplingParams(max_new_tokens=tokens, ignore_eos=True))


def generate_theirs(model: PreTrainedModel, bench: Bench, tokens: int, more: dict[str, Any]) -> Callable[[], object]:
    """The same in transformers, with `more` arguments for its generate."""
    ids = torch.tensor(bench.prompts(model.config.vocab_size, 1), device=bench.device)
    mask = torch.ones_like(ids)

    def call() -> object:
        asked = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        # Reading the tokens synchronises.
        return model.generate(ids, attention_mask=mask, **asked, **more).tolist()

    return call


def per_token(times: tuple[float, ...], tokens: int) -> str:
    """A note with the median time per token; times in seconds."""
    return f"theirs {sorted(times)[len(times) // 2] / tokens * 1e3:.1f} ms a token, prompt included"
