"""SGLang's server with drafts on a CPU: `python sglang_cpu.py FLAGS`, with the flags of `sglang.launch_server`, in an
environment that has SGLang 0.5.13 (`specmatrix subjects install sglang`).

There SGLang drafts and verifies on a CPU, its Triton kernels in Triton's interpreter, but for the operations below,
which it has as CUDA kernels only. Here they are in torch, so cells that run with them say nothing of those kernels, but
of all the rest: schedule, draft KV, masks, compaction, stops. Sampled drafts are accepted by target-only sampling.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

CPU: Final = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "triton"),
    *("--disable-overlap-schedule", "--disable-cuda-graph"),
)
FULL_MASK: Final = 0
Links = tuple[list[int], list[int], list[int]]  # of each node its token, first child and next sibling, -1 for none


def build_tree(
    parents: Tensor,
    selected: Tensor,
    lengths: Tensor,
    mask: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    topk: int,
    depth: int,
    nodes: int,
    mask_mode: int,
) -> None:
    """Fill mask, positions, index and links [B, N] of trees. selected [B, N - 1]: candidate of each draft; parents [B,
    topk * (depth - 1) + 1]: the candidate that each beam extends."""
    offset = 0
    for row, (chosen, above, length) in enumerate(
        zip(selected.tolist(), parents.tolist(), lengths.tolist(), strict=True)
    ):
        place = {candidate: node for node, candidate in enumerate(chosen, 1)}
        parent = [-1] + [place[above[one // topk]] if one // topk else 0 for one in chosen]
        wide = (length if mask_mode == FULL_MASK else 0) + nodes
        own = mask[offset : offset + nodes * wide].view(nodes, wide)[:, -nodes:]
        offset += nodes * wide
        own.fill_(False)
        for node in range(nodes):
            if node:
                own[node] = own[parent[node]]
            own[node, node] = True
        positions.view(-1, nodes)[row] = length + own.sum(1) - 1
        index[row] = row * nodes + torch.arange(nodes)
        for node in range(nodes - 1, 0, -1):
            next_sibling[row, node] = next_token[row, parent[node]]
            next_token[row, parent[node]] = node


def verify_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Accept the drafts that equal the target's best token [B, N] after the node before them."""
    best = target_predict.tolist()
    for row in range(len(candidates)):
        links = candidates[row].tolist(), retrive_next_token[row].tolist(), retrive_next_sibling[row].tolist()
        path = [0]
        while len(path) < accept_index.shape[1]:
            found = next((one for one in _children(links, path[-1]) if links[0][one] == best[row][path[-1]]), None)
            if found is None:
                break
            path.append(found)
        _write(row, path, [best[row][node] for node in path], predicts, accept_index, accept_token_num, retrive_index)


def verify_sampled(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
) -> None:
    """Target-only sampling: a node's coin accepts the first child at which the cumulated probability reaches it; behind
    the last node the token comes from what the rejected children leave."""
    for row in range(len(candidates)):
        links = candidates[row].tolist(), retrive_next_token[row].tolist(), retrive_next_sibling[row].tolist()
        path, left = [0], target_probs[row, 0].double()
        while len(path) < accept_index.shape[1]:
            law, reached, found = target_probs[row, path[-1]].double(), 0.0, None
            left = law.clone()
            for child in _children(links, path[-1]):
                chance = float(law[links[0][child]])
                reached += chance
                if float(uniform_samples[row, path[-1]]) < reached / threshold_acc or chance >= threshold_single:
                    found = child
                    break
                left[links[0][child]] = 0.0
            if found is None:
                break
            path.append(found)
            left = target_probs[row, found].double()
        level = left.cumsum(0)
        last = int(torch.searchsorted(level, uniform_samples_for_final_sampling[row].double() * level[-1], right=True))
        given = [links[0][node] for node in path[1:]] + [min(last, int(left.nonzero().max()))]
        _write(row, path, given, predicts, accept_index, accept_token_num, retrive_index)


def top_k_renorm(probs: Tensor, top_k: Tensor) -> Tensor:
    """probs [R, V] without all but the top_k [R] likeliest tokens, renormalised."""
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    return _renormalised(ranked.masked_fill(torch.arange(probs.shape[1]) >= top_k[:, None], 0.0), order)


def top_p_renorm(probs: Tensor, top_p: Tensor) -> Tensor:
    """probs [R, V] of the fewest likeliest tokens that reach top_p [R], renormalised."""
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    return _renormalised(ranked.masked_fill(ranked.cumsum(-1) - ranked >= top_p[:, None], 0.0), order)


def _renormalised(ranked: Tensor, order: Tensor) -> Tensor:
    return torch.zeros_like(ranked).scatter_(-1, order, ranked / ranked.sum(-1, keepdim=True))


def _children(links: Links, node: int) -> list[int]:
    found, child = [], links[1][node]
    while child != -1:
        found.append(child)
        child = links[2][child]
    return found


def _write(
    row: int, path: list[int], given: list[int], predicts: Tensor, accepted: Tensor, count: Tensor, index: Tensor
) -> None:
    """The path's nodes, and the token given after each of them."""
    places = index[row, path]
    accepted[row, : len(path)] = places.to(accepted.dtype)
    predicts[places] = torch.tensor(given, dtype=predicts.dtype)
    count[row] = len(path) - 1


def supply() -> None:
    """Put the operations where SGLang's modules look for them."""
    from sglang.srt.speculative import eagle_info, eagle_info_v2, eagle_utils, ngram_info
    from sglang.srt.speculative.triton_ops import cache_locs

    modules: tuple[Any, ...] = (eagle_info, eagle_info_v2, ngram_info)
    vars(cache_locs)["_is_cuda"] = True  # its Triton kernel, which only CUDA selects
    eagle_utils.sgl_build_tree_kernel_efficient = build_tree
    ngram_info.verify_tree_greedy = verify_greedy
    for module in modules:
        module.top_k_renorm_prob, module.top_p_renorm_prob = top_k_renorm, top_p_renorm
        module.tree_speculative_sampling_target_only = verify_sampled

    def greedy(predicts: Tensor, accept_index: Tensor, accept_token_num: Tensor, topk: int = -1, **rest: Tensor) -> Any:  # noqa: ANN401
        given = {name.replace("retrieve", "retrive"): value for name, value in rest.items()}
        verify_greedy(predicts, accept_index, accept_token_num, **given)
        return predicts, accept_index, accept_token_num

    for module in (eagle_info, eagle_info_v2, eagle_utils):
        module.verify_tree_greedy_func = greedy


# In the scheduler's process, which imports this file anew, its name is another.
if __name__ in ("__main__", "__mp_main__"):
    os.environ |= {"TRITON_INTERPRET": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    # A script's own folder comes first, and must not hide a package of SGLang's.
    sys.path[:] = [one for one in sys.path if one != str(Path(__file__).resolve().parent)]
    supply()

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args([*CPU, *sys.argv[1:]]))
