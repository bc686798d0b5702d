"""Detects drafters that read tensors on the host, which would make every launch wait for the device.

Two modes of torch, both only while a detector is entered: a function mode sees the methods that may bypass torch's
dispatcher (`tolist` of a CPU tensor dispatches no operation), a dispatch mode all other reads, which are operations,
recognised by name.

Not detected: memory shared with the host (DLPack, a storage, a pointer) and read there, a tensor within the list given
to `torch.tensor`, a wait of `torch.cuda`, and on a CPU a copy to `torch.device("cpu")`, where the tensor already is.
Iterating over a tensor is not a read: the items are tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Methods whose result is on the host, whatever the tensor's device.
READS: Final = (
    "tolist",
    "item",
    "numpy",
    "cpu",
    "nonzero",
    "to",
    "__repr__",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__array__",
)
METHODS: Final = {getattr(Tensor, name): name for name in READS}
# Operations whose result, or its shape, is on the host: aten's name and the users' name.
OPERATIONS: Final = {
    "_local_scalar_dense": "Tensor.item",
    "item": "Tensor.item",
    "is_nonzero": "torch.is_nonzero",
    "equal": "torch.equal",
    "allclose": "torch.allclose",
    "nonzero": "torch.nonzero",
    "nonzero_numpy": "torch.nonzero",
    "argwhere": "torch.argwhere",
    "masked_select": "torch.masked_select",
    "_unique": "torch.unique",
    "_unique2": "torch.unique",
    "unique_dim": "torch.unique",
    "unique_consecutive": "torch.unique_consecutive",
    "bincount": "torch.bincount",
}
COPIES: Final = ("to", "_to_copy", "copy_")


class SyncDetector:
    """While entered, `seen` is set to the name of the first read; the read itself proceeds, so results stay correct."""

    def __init__(self) -> None:
        self.seen: str | None = None
        self._modes = ExitStack()

    def __enter__(self) -> SyncDetector:
        self._modes.enter_context(_Methods(self))
        self._modes.enter_context(_Operations(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._modes.close()


class _Methods(TorchFunctionMode):
    """Reports which method of a tensor was a read."""

    def __init__(self, detector: SyncDetector) -> None:
        super().__init__()
        self._detector = detector

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        more = kwargs or {}
        name = METHODS.get(func)
        if name is not None and (name != "to" or "cpu" in (*args[1:2], more.get("device"))):
            self._detector.seen = self._detector.seen or f"Tensor.{name}"
        return func(*args, **more)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is not annotated
    """Reports which operation was a read."""

    def __init__(self, detector: SyncDetector) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._detector = detector

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: otherwise torch would import its compiler at the first operation, which takes a second."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        more = kwargs or {}
        result = func(*args, **more)
        self._detector.seen = self._detector.seen or read_of(func, args, more, result)
        return result


def read_of(func: OpOverload[..., Any], args: Sequence[Any], more: Mapping[str, Any], result: object) -> str | None:
    """The users' name of operation `func` if it made the host wait for the device, else None."""
    name = func.overloadpacket.__name__
    if name in OPERATIONS:
        return OPERATIONS[name]
    if name == "where" and len(args) == 1:
        return "torch.where with one argument"
    if name == "index" and _masked(args[1]):
        return "indexing by a mask"
    # A single number is filled in under the mask; several must be counted.
    if name in ("index_put", "index_put_") and _masked(args[1]) and args[2].numel() != 1:
        return "writing several numbers under a mask"
    if name == "repeat_interleave" and more.get("output_size") is None:
        counts = args[0] if len(args) == 1 else args[1]
        return "torch.repeat_interleave" if isinstance(counts, Tensor) else None
    if name == "one_hot" and (args[1] if len(args) > 1 else more.get("num_classes", -1)) == -1:
        return "torch.one_hot without num_classes"
    if name == "tensor_split" and isinstance(args[1], Tensor):
        return "torch.tensor_split"
    if name in COPIES and isinstance(result, Tensor) and result.device.type == "cpu":
        away = any(isinstance(given, Tensor) and given.device.type != "cpu" for given in args)
        return "a copy to the CPU" if away else None
    return None


def _masked(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
