"""Made-up numbers of the gate `speed`."""

from typing import Any

import numpy as np

from specmatrix.reports.speed import RATIOS

STARTS, TURNS = 8, 16
# What a GPU host showed: standard deviations between the engine starts of equal runs, of the speed over no drafter and
# of what both sides share; and between the turns of one start.
SPREAD, SHARED, NOISE = 0.011, 0.02, 0.02


def numbers(
    chance: np.random.Generator,
    noise: float = NOISE,
    ours: float = 1.0,
    plain: float = 1.0,
    machine: float = 1.0,
    starts: int = STARTS,
    turns: int = TURNS,
    spread: float = SPREAD,
    shared: float = SHARED,
    gpus: int = 1,
) -> dict[str, Any]:
    """What a run measured: prompts differ in length, starts differ, and each time has its own noise. ours, plain,
    machine: how much longer rounds with a drafter, steps without, and everything took."""
    work = 0.012 * machine
    rates = 2000 * np.exp(np.random.default_rng(5).normal(0, 0.2, turns)) / ours / machine
    base = np.full(turns, 1500) / plain / machine
    both, alone = (np.exp(chance.normal(0, sd, (starts, 1))) for sd in (shared, spread))
    mine, theirs, works = (np.exp(chance.normal(0, noise, (starts, turns))) for _ in range(3))
    mine, theirs = mine * both * alone, theirs * both
    lists = {
        "speed": rates * mine / (base * theirs),
        "first_token": theirs / mine,
        "output_token": 1.1 * rates * mine / (base * theirs),
        "own_speed": rates * mine * work * works,
        "plain_speed": base * theirs * work * works,
    }
    figures = {
        "speed_up": 1.3, "tokens_per_second": float(np.median(rates)), "baseline_tokens_per_second": 1500 / plain,
        "first_token_ms": 2.0, "baseline_first_token_ms": 1.9, "output_token_ms": 0.5,
        "baseline_output_token_ms": 0.6, "work_ms": 1e3 * work,
    }  # fmt: skip
    found = {"clock": "wall", "device": "H100", "gpus": gpus, "starts": starts, "turns": turns, **figures}
    return {**found, **{RATIOS[name]: [float(value) for value in values.ravel()] for name, values in lists.items()}}
