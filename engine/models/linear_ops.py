"""A model's projections, and how they keep a row's bits independent of the other rows.

A BLAS chooses the summation order by the product's shape: a single row, few rows and the last rows of many often have
their own routines. On CUDA `kernels.matmul` has one order. On a CPU, a deterministic model chooses when it is loaded,
for each weight shape, the first of FORMS whose row invariance `holds`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.device.collectives import Ranks
from specmatrix.errors import ConfigError
from specmatrix.kernels.backend import on_triton
from specmatrix.kernels.matmul import matmul

# Maximum rows of one product: longer ones are split, so that all are within the tested range.
MAX_ROWS: Final = 192
# Row counts that the test of row invariance compares with a product of MAX_ROWS rows.
COUNTS: Final = (*range(1, 18), 23, 33, 64, 100)


class Form(NamedTuple):
    """A way to multiply x [..., M, in] by weight [..., in, out]: x is padded with zeros to at least `least` rows and a
    multiple of `block`; block 0 means one product per row."""

    name: str
    block: int
    least: int = 1

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        rows, most = x.shape[-2], MAX_ROWS if self.block else 1
        if rows > most:
            return torch.cat([self(part, weight) for part in x.split(most, -2)], -2)
        spare = max(-rows % self.block, self.least - rows) if self.block else 0
        if spare <= 0:
            return torch.matmul(x, weight)
        filled = torch.cat((x, x.new_zeros(*x.shape[:-2], spare, x.shape[-1])), -2)
        return torch.matmul(filled, weight)[..., :rows, :]


FORMS: Final = (
    Form("plain", 1),
    Form("at least 2 rows", 1, 2),
    Form("at least 4 rows", 1, 4),
    Form("padded to 8", 8),
    Form("padded to 24", 24),
    Form("padded to 64", 64),
    Form("one product per row", 0),
)


class LinearOps(NamedTuple):
    """linear: x [M, in] @ weight [in, out] -> [M, out], into `out` if given. add(out, x, weight): out += x @ weight, in
    place. each: x [H, M, in] @ weight [H, in, out] -> [H, M, out].

    add adds to the residual stream; for a model that several ranks share it adds the sum over the ranks.
    rows: the row-invariant products; None if a row's bits may depend on M.
    """

    linear: Callable[..., Tensor]
    add: Callable[[Tensor, Tensor, Tensor], object]
    each: Callable[[Tensor, Tensor], Tensor]
    rows: RowInvariantOps | None = None

    def over(self, ranks: Ranks) -> LinearOps:
        """The same operations for layers that are split over ranks."""
        if ranks.size == 1:
            return self
        return self._replace(add=lambda out, x, weight: ranks.total(self.linear(x, weight), out))

    def hold(self, weight: Tensor) -> Tensor:
        """Register a weight for these products and return it. ConfigError if no form is row-invariant for its shape."""
        if self.rows is not None:
            self.rows.hold(weight)
        return weight


class RowInvariantOps:
    """Matrix products of a deterministic model. forms: the chosen CPU form by weight shape, weight dtype and number of
    threads."""

    def __init__(self) -> None:
        self.forms: dict[tuple[torch.Size, torch.dtype, int], Form] = {}

    @property
    def names(self) -> str:
        """The names of the forms in use, simplest first."""
        return " and ".join(form.name for form in FORMS if form in self.forms.values())

    def hold(self, weight: Tensor) -> None:
        if not on_triton(weight):
            self._form(weight)

    def _form(self, weight: Tensor) -> Form:
        threads = torch.get_num_threads()  # which may change after loading
        key = weight.shape, weight.dtype, threads
        if key not in self.forms:
            held = (form for form in FORMS if holds(form, tuple(weight.shape), weight.dtype, threads))
            found = next(held, None)
            if found is None:
                raise _no_form(weight)
            self.forms[key] = found
        return self.forms[key]

    def linear(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        if on_triton(x):
            return matmul(x, weight, out)
        form = self._form(weight)
        if out is not None and form.block == 1 and form.least <= len(x) <= MAX_ROWS:
            return torch.mm(x, weight, out=out)
        found = form(x, weight)
        return found if out is None else out.copy_(found)

    def add(self, out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return matmul(x, weight, out, add=True) if on_triton(x) else out.add_(self._form(weight)(x, weight))

    def each(self, x: Tensor, weight: Tensor) -> Tensor:
        return matmul(x, weight) if on_triton(x) else self._form(weight)(x, weight)


def _no_form(weight: Tensor) -> ConfigError:
    tried = ", ".join(form.name for form in FORMS)
    return ConfigError(
        f"enable_deterministic_inference: on this machine, in products [rows, in] @ {list(weight.shape)} in "
        f"{str(weight.dtype).removeprefix('torch.')}, a row's bits depend on the other rows in every form "
        f"({tried}); remove the flag, or set MKL_CBWR=COMPATIBLE if torch uses MKL"
    )


@cache
def holds(form: Form, shape: tuple[int, ...], dtype: torch.dtype, threads: int) -> bool:
    """Whether a row has the same bits alone, at several positions and among up to MAX_ROWS rows, contiguous or not.

    shape [..., in, out] of the weight. Cached per number of threads, because a BLAS may split sums by threads.
    """
    *several, inner, _ = shape
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).to(dtype)
    x = torch.randn(MAX_ROWS, 2, *several, inner, generator=generator).to(dtype)[:, 0].movedim(0, -2)
    whole = form(x, weight)
    order = torch.randperm(MAX_ROWS, generator=generator)
    return all(
        torch.equal(form(x[..., :count, :], weight), whole[..., :count, :])
        and torch.equal(form(x[..., order[:count], :], weight), whole[..., order[:count], :])
        for count in COUNTS
    )


# The fastest operations: a row's bits depend on M.
FAST: Final = LinearOps(lambda x, weight, out=None: torch.mm(x, weight, out=out), Tensor.addmm_, torch.bmm)


def linear_ops(deterministic: bool) -> LinearOps:
    """The projections of a deterministic or an ordinary model."""
    if not deterministic:
        return FAST
    rows = RowInvariantOps()
    return LinearOps(rows.linear, rows.add, rows.each, rows)
