"""Sees a drafter read tensors on the host, which would make every launch wait for the device.

On a CPU such a read leaves no trace but the call itself. A torch function mode would see it too, at a few
microseconds for every operation of the drafter; standing in for the reading methods costs nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

# Methods whose result is the host's, whatever the tensor's device.
READS: Final = (
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
_watching: list[HostWatch] = []


class HostWatch:
    """While entered, `seen` takes the name of the first read; the read itself goes on, so results stay right."""

    def __init__(self) -> None:
        self.seen: str | None = None

    def __enter__(self) -> HostWatch:
        _watching.append(self)
        for name, spy in SPIES.items():
            setattr(Tensor, name, spy)
        return self

    def __exit__(self, *error: object) -> None:
        _watching.remove(self)
        if _watching:
            return
        for name in READS:
            if name in OWN:
                setattr(Tensor, name, OWN[name])
            else:
                delattr(Tensor, name)


def _spy(name: str) -> Callable[..., Any]:
    read = getattr(Tensor, name)

    def spy(tensor: Tensor, *args: object, **more: object) -> object:
        for watch in _watching:
            watch.seen = watch.seen or name
        return read(tensor, *args, **more)

    return spy


# What Tensor defines itself and does not inherit.
OWN: Final = {name: vars(Tensor)[name] for name in READS if name in vars(Tensor)}
SPIES: Final = {name: _spy(name) for name in READS}
