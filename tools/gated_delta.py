"""Gated delta nets at Qwen3-Next's layer shape in bf16, beside flash-linear-attention's kernels, in one run on a GPU:
`python -m tools.gated_delta`.

Both sides convolve, normalise, compute gates and keep the states that the engine keeps. Theirs are one convolution of
all channels and one rule over queries, keys and values that lie apart beforehand, so what splits them is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Final

import torch
from torch import Tensor

from specmatrix.benchmarks.command import recorded
from specmatrix.benchmarks.gpu import device_seconds
from specmatrix.benchmarks.metric import Metric, interleave, own_time
from specmatrix.kernels.gated_delta import gated_delta
from specmatrix.reports.render.markup import markdown

PAIRS: Final = 5
GOAL: Final = 0.9
# Key heads, value heads, their widths, and taps of the convolution.
HK, HV, DK, DV, TAPS = 16, 32, 128, 128, 4
CHANNELS: Final = 2 * HK * DK + HV * DV
# Requests and tokens of prefill; requests of a decode step and of a round of NODES tokens.
PREFILLS: Final = ((1, 1024), (1, 4096), (1, 8192), (4, 1024), (4, 4096), (4, 8192))
DECODED: Final = (1, 32, 128)
NODES: Final = 6
# Largest distance between both sides' outputs, relative to the largest one.
APART: Final = 0.03
Run = Callable[[], Tensor]


def measure() -> Iterator[Metric]:
    """Their time over ours for each call."""
    for batch, tokens in PREFILLS:
        yield _compared(f"delta_prefill_{tokens}_batch_{batch}", *sides(batch, tokens, "chunk"))
    for batch in DECODED:
        yield _compared(f"delta_decode_batch_{batch}", *sides(batch, 1, "nodes"))
        yield _compared(f"delta_verify_{NODES}_batch_{batch}", *sides(batch, NODES, "nodes"))
        yield _compared(f"delta_verify_{NODES}_last_state_batch_{batch}", *sides(batch, NODES, "last"))


def _compared(name: str, ours: Run, theirs: Run) -> Metric:
    with torch.inference_mode():
        one, two = ours().float(), theirs().float()
    off = float((one - two).abs().max() / two.abs().max())
    pairs = interleave(
        lambda: device_seconds(ours, "cuda"), lambda: device_seconds(theirs, "cuda"), PAIRS, clock=own_time
    )
    if not off <= APART:
        pairs = pairs._replace(differs=f"outputs differ by {off:.2g} of the largest")
    best = (1e6 * min(times) for times in (pairs.ours, pairs.theirs))
    return pairs.metric(f"{name}_over_fla", GOAL, "ours {:.1f} us, theirs {:.1f} us at best".format(*best))


def sides(batch: int, tokens: int, kept: str) -> tuple[Run, Run]:
    """Our call and theirs. kept: states after the `last` token or all `nodes`, or the last of a `chunk`."""
    rules, convolution = (import_module(f"fla.{name}") for name in ("ops.gated_delta_rule", "modules.causal_conv1d"))
    generator = torch.Generator("cuda").manual_seed(1)

    def draw(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(size, device="cuda", dtype=dtype, generator=generator)

    u, gates, conv = draw(batch, tokens, CHANNELS), draw(2, batch, tokens, HV), draw(CHANNELS, TAPS) / 2
    b, a = gates
    a_log, dt_bias = draw(HV, dtype=torch.float32).abs(), draw(HV, dtype=torch.float32)
    read = torch.arange(1, batch + 1, device="cuda")
    slots = 1 + batch + batch * (tokens if kept == "nodes" else 1)
    write = torch.arange(1 + batch, slots, device="cuda").view(batch, -1)
    write = torch.cat((torch.zeros(batch, tokens - write.shape[1], device="cuda", dtype=torch.int64), write), 1)
    windows, states = draw(slots, TAPS - 1, CHANNELS), draw(slots, HV, DK, DV, dtype=torch.float32)

    def ours() -> Tensor:
        return gated_delta(u, b, a, conv, a_log, dt_bias, windows, states, read, write, None, kept == "chunk")

    before = torch.nn.functional.pad(windows[read], (0, 0, 1, 0)).mT.contiguous()
    mixed, _ = convolution.causal_conv1d(u, conv, initial_state=before, activation="silu")
    parts = mixed.split((HK * DK, HK * DK, HV * DV), 2)
    parts = [u, *(part.unflatten(2, (-1, DK)) for part in parts), *gates.flip(0)]
    each = 1 if kept == "nodes" else tokens
    calls = list(zip(*([one.contiguous() for one in part.split(each, 1)] for part in parts), strict=True))
    names = ("use_qk_l2norm_in_kernel", "use_gate_in_kernel", "use_beta_sigmoid_in_kernel", "output_final_state")
    asked = dict.fromkeys(names, True) | {"A_log": a_log, "dt_bias": dt_bias}
    rule = rules.chunk_gated_delta_rule if kept == "chunk" else rules.fused_recurrent_gated_delta_rule
    convolve = partial(convolution.causal_conv1d_update, cache=before)
    if each > 1:
        convolve = partial(convolution.causal_conv1d, initial_state=before, output_final_state=True)

    def theirs() -> Tensor:
        state, made = states[1 : batch + 1], []
        for own, q, k, v, gate, beta in calls:
            convolve(own, weight=conv, activation="silu")
            got, state = rule(q, k, v, g=gate, beta=beta, initial_state=state, **asked)
            made.append(got)
        return made[0] if len(made) == 1 else torch.cat(made, 1)

    return ours, theirs


if __name__ == "__main__":
    print(markdown("bench.md.j2", record=recorded([*measure()])))
