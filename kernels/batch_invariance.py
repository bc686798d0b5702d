"""Batch invariance: other calls that compute some rows of a result, which must then be bitwise identical.

Each function yields arguments for the operation and the rows of the full result that they compute, int64.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from specmatrix.kernels.case import Arguments

# Appended masked key positions: more than one split of paged_attention holds.
MASKED_KEYS = 300


def of_rows(arguments: Arguments, places: tuple[int, ...] = (0,), axis: int = 0) -> Iterator[tuple[Arguments, Tensor]]:
    """Prefixes of 1 to 64 rows, some longer prefixes, and all rows permuted.

    places: indices of the arguments that hold one row per row of the result, along `axis`.
    """
    rows = arguments[places[0]].shape[axis]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    counts = sorted({*range(1, min(rows, 64) + 1), *range(1, rows, 37), rows})
    for chosen in (*(torch.arange(count) for count in counts if count), order):
        if len(chosen):
            yield _of(arguments, places, chosen, axis), chosen


def _at(arguments: Arguments, place: int) -> object:
    return arguments[place] if place < len(arguments) else None


def of_added_rows(arguments: Arguments) -> Iterator[tuple[Arguments, Tensor]]:
    """`of_rows` for a product that is accumulated into its third argument."""
    return of_rows(arguments, (0, 2))


def of_batched_rows(arguments: Arguments) -> Iterator[tuple[Arguments, Tensor]]:
    """`of_rows` for a batched product, whose result is flattened to rows."""
    matrices, rows = arguments[0].shape[:2]
    for part, chosen in of_rows(arguments, axis=1):
        yield part, (torch.arange(matrices)[:, None] * rows + chosen).flatten()


def of_normed_rows(arguments: Arguments) -> Iterator[tuple[Arguments, Tensor]]:
    """`of_rows` for a norm, with or without an output buffer."""
    return of_rows(arguments, tuple(place for place in (0, 3) if isinstance(_at(arguments, place), Tensor)))


def of_queries(arguments: Arguments) -> Iterator[tuple[Arguments, Tensor]]:
    """Attention: a single request, a single query, reordered requests, additional masked keys, and other slots."""
    q, cache, slots, bias, *rest = arguments
    batch, width = q.shape[:2]
    place = torch.arange(batch * width).view(batch, width)
    for request in range(batch):
        alone = torch.tensor([request], device=q.device)
        yield _step(arguments, alone, slice(None)), place[request]
        for query in {0, width // 2, width - 1}:
            yield _step(arguments, alone, slice(query, query + 1)), place[request, query : query + 1]
    if batch:
        order = torch.arange(batch - 1, -1, -1)
        yield _step(arguments, order.to(q.device), slice(None)), place[order].flatten()
        far = torch.cat((slots, slots[:, :1].expand(-1, MASKED_KEYS)), 1)
        hidden = torch.cat((bias, bias.new_full((*bias.shape[:3], MASKED_KEYS), float("-inf"))), 3)
        yield (q, cache, far, hidden, *rest), place.flatten()
        # All slots except the padding slot.
        others = torch.randperm(cache.shape[0] - 1, generator=torch.Generator().manual_seed(1)) + 1
        moved = torch.cat((torch.zeros(1, dtype=torch.int64), others)).to(q.device)
        elsewhere = torch.empty_like(cache)
        elsewhere[moved] = cache
        yield (q, elsewhere, moved[slots], bias, *rest), place.flatten()


def _step(arguments: Arguments, requests: Tensor, queries: slice) -> Arguments:
    q, cache, slots, bias, *rest = arguments
    # Dropping the first queries moves the start by as many positions.
    rest = [one[requests] + (queries.start or 0) if isinstance(one, Tensor) else one for one in rest]
    return q[requests][:, queries], cache, slots[requests], bias[requests][:, :, queries].contiguous(), *rest


def _of(arguments: Arguments, places: tuple[int, ...], rows: Tensor, axis: int) -> Arguments:
    return tuple(a.index_select(axis, rows.to(a.device)) if place in places else a for place, a in enumerate(arguments))


of_rotated_rows = partial(of_rows, places=(0, 1))
