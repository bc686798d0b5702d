"""Sees a drafter read tensors on the host, which would make every launch wait for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

# Methods of a tensor whose result is the host's, whatever the device; on a CPU they are the only trace of it.
READS: Final[dict[object, str]] = {
    getattr(torch.Tensor, name): name
    for name in (
        "tolist",
        "item",
        "numpy",
        "cpu",
        "nonzero",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__array__",
    )
}


class HostWatch(TorchFunctionMode):
    """While active, `seen` takes the name of the first read; the read itself goes on, so results stay right."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: str | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        if self.seen is None and func in READS:
            self.seen = READS[func]
        return func(*args, **(kwargs or {}))
