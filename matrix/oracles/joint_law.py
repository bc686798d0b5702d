"""The law of the first tokens after a prompt, by the zoo's own network without KV. Shares no code with the engine."""

from __future__ import annotations

from functools import cache
from typing import Final

from specmatrix.matrix.oracles.drawn_rounds import filtered
from specmatrix.matrix.oracles.logit_rules import network
from specmatrix.matrix.workloads.questions import prompt_ids
from specmatrix.matrix.workloads.request import RequestSpec

# Outputs less likely than this are left out.
LEAST: Final = 1e-3


@cache
def joint_law(target: str, request: RequestSpec) -> dict[tuple[int, ...], float]:
    """Probability of every output of a sampled request's `max_new_tokens` tokens, all drawn, that is likely enough,
    under its temperature, min_p, top_k and top_p; the likeliest first."""
    import torch

    prompt, paths = prompt_ids(request), dict[tuple[int, ...], float]({(): 1.0})
    with torch.inference_mode():
        for _ in range(request.max_new_tokens):
            rows = torch.tensor([[*prompt, *path] for path in paths])
            grown: dict[tuple[int, ...], float] = {}
            for (path, share), logits in zip(paths.items(), network(target)(rows)[0][:, -1], strict=True):
                law = filtered(request, logits, request.min_p).masses
                grown |= {(*path, int(token)): share * law[token] for token in (share * law >= LEAST).nonzero()[0]}
            paths = grown
    return {path: float(paths[path]) for path in sorted(paths, key=lambda path: -paths[path])}
