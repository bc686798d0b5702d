"""A bare decode step (forward, logits, argmax) against transformers' own model with the same weights.

    python -m specmatrix.benchmarks.decode_step [CHECKPOINT] [--length 128] [--rounds 15]

Without a checkpoint: random weights of llama-mini's shape. Prints medians of interleaved rounds in ms on one thread,
each mode's speed-up over transformers, and the cost of deterministic mode: its time over the fast mode's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.models.loader import load_target
from specmatrix.engine.models.target import Target

STEPS = 20


def our_step(model: Target, batch: int, length: int) -> Callable[[], None]:
    """STEPS decode steps of `batch` requests that read `length` KV slots each."""
    pool = KVPool(model.kv, batch + 1, length, model.dtype, model.device, deterministic=model.deterministic)
    read = (torch.arange(batch * length) + length).view(batch, length)
    bias = torch.zeros(batch, 1, 1, length)
    tokens = torch.randint(0, model.vocab_size, (batch, 1))
    positions = torch.full((batch, 1), length - 1)

    def run() -> None:
        for _ in range(STEPS):
            attend = StepAttention(pool, read[:, -1:], read, bias)
            hidden, _ = model.forward(tokens, positions, attend)
            model.logits(hidden).argmax(-1)

    return run


def their_step(model: LlamaForCausalLM, batch: int, length: int) -> Callable[[], None]:
    """The same with transformers' dynamic cache, which grows from `length` - 1 and is cropped after each round."""
    cache = DynamicCache(config=model.config)
    model(torch.randint(0, model.config.vocab_size, (batch, length - 1)), past_key_values=cache)
    tokens = torch.randint(0, model.config.vocab_size, (batch, 1))

    def run() -> None:
        for _ in range(STEPS):
            model(tokens, past_key_values=cache).logits.argmax(-1)
        cache.crop(-STEPS)

    return run


def interleaved(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median ms per step of each, interleaved so that disturbances affect all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) / STEPS * 1000)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def main() -> None:
    """Print the table, one row per batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        path = arguments.checkpoint or _random_llama_mini(scratch)
        theirs = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        ours = {kind: load_target(path, "cpu", torch.float32, kind == "deterministic") for kind in KINDS}
    print(f"{'batch':>5} {'transformers':>13} " + " ".join(f"{kind:>13} {'ratio':>6}" for kind in KINDS) + "   cost")
    with torch.inference_mode():
        for batch in (1, 2, 4, 8):
            runs = {kind: our_step(model, batch, arguments.length) for kind, model in ours.items()}
            taken = interleaved(runs | {"transformers": their_step(theirs, batch, arguments.length)}, arguments.rounds)
            base = taken["transformers"]
            row = " ".join(f"{taken[kind]:13.3f} {base / taken[kind]:6.2f}" for kind in KINDS)
            print(f"{batch:5d} {base:13.3f} {row} {taken['deterministic'] / taken['fast']:6.2f}")


KINDS = ("fast", "deterministic")


def _random_llama_mini(folder: str) -> str:
    config = LlamaConfig(
        vocab_size=768,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
