"""Inspects how a drafter uses its inputs, its results, the host and its process; part of the conformance suite only.

A drafter that reads tensors on the host would make every launch wait for the device. Two modes of torch see that, both
only while a detector is entered: a function mode the methods that may bypass torch's dispatcher (`tolist` of a CPU
tensor dispatches no operation), a dispatch mode all other reads, which are operations, recognised by name.

Not detected: memory shared with the host (DLPack, a storage, a pointer) and read there, a tensor within the list given
to `torch.tensor`, a wait of `torch.cuda`, and on a CPU a copy to `torch.device("cpu")`, where the tensor already is.
Iterating over a tensor is not a read: the items are tensors.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specmatrix.engine.api import LLM
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftState, Relay
from specmatrix.engine.spec.drafter import Drafter, DraftTree, VerifyResult
from specmatrix.engine.spec.guard import BATCH, TORCH_SETTINGS, Setting, read, restore


class HostReads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of host_reads.yaml, which explains it."""

    methods: tuple[str, ...]
    operations: dict[str, str]


HOST_READS: Final = msgspec.yaml.decode(Path(__file__).with_name("host_reads.yaml").read_bytes(), type=HostReads)
METHODS: Final = {getattr(Tensor, name): name for name in HOST_READS.methods}
COPIES: Final = ("to", "_to_copy", "copy_")


class SyncDetector(ExitStack):
    """While entered, `seen` is set to the name of the first read; the read itself proceeds, so results stay correct."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: str | None = None

    def __enter__(self) -> Self:
        self.enter_context(_Methods(self))
        self.enter_context(_Operations(self))
        return self


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
    if name in HOST_READS.operations:
        return HOST_READS.operations[name]
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


class Copy(NamedTuple):
    """A tensor and an earlier copy of it. violation: the message if the two differ later."""

    violation: str
    tensor: Tensor
    copy: Tensor

    def differs(self) -> Tensor | bool:
        """Scalar bool tensor. Does not synchronise with the GPU, as a graph capture may be in progress."""
        if self.tensor.shape != self.copy.shape or self.tensor.dtype is not self.copy.dtype:
            return True
        if self.tensor.device.type == "cpu":
            return not torch.equal(self.tensor, self.copy)
        return (self.tensor != self.copy).any()


class InspectedDrafter:
    """A drafter whose hooks are inspected.

    Violations: a host read without the trait reads_host, a write into an input, and a returned tensor that changes
    before the next hook runs, as another thread still writes to it.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._found: dict[str, Tensor | bool] = {}
        self._returned: list[Copy] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the drafter's attribute
        return getattr(self._drafter, name)

    @property
    def violations(self) -> tuple[str, ...]:
        """The violations so far; waits for the device."""
        with torch.inference_mode():
            self._compare(self._returned)
        subject = f"the drafter of {self._drafter.traits.name}"
        return tuple(f"{subject} {violation}" for violation, found in self._found.items() if found)

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState | None:
        inputs = {"tokens": tokens, "sampled": sampled, "following": following}
        state: DraftState | None = self._call("prime", inputs, batch, tokens, aux, sampled, following)
        return state

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        tree: DraftTree = self._call("propose", {}, batch, relay)
        return tree

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> DraftState | None:
        inputs = {f"verdict.{name}": tensor for name, tensor in verdict._asdict().items() if tensor is not None}
        state: DraftState | None = self._call("absorb", inputs, batch, verdict, aux)
        return state

    def _call(self, hook: str, inputs: Mapping[str, Tensor], batch: StepBatch, *given: object) -> Any:  # noqa: ANN401
        # A graph replay would read the tensor's memory after it is reused.
        captured = batch.rows.is_cuda and torch.cuda.is_current_stream_capturing()
        if not captured:
            self._compare(self._returned)
        self._returned = []
        lent = [_copied(f"wrote into {name} in {hook}", each) for name, each in {**_tensors(batch), **inputs}.items()]
        detector = SyncDetector()
        try:
            with nullcontext() if self._drafter.traits.reads_host else detector:
                result = getattr(self._drafter, hook)(batch, *given)
        finally:
            self._compare(lent)
            if detector.seen is not None:
                self._found[f"read a tensor on the host ({detector.seen}) in {hook} without the trait reads_host"] = (
                    True
                )
        fields = result._asdict() if isinstance(result, DraftTree) else result
        self._returned = [
            _copied(f"changed {name!r} after {hook} had returned it", tensor)
            for name, tensor in (fields.items() if isinstance(fields, Mapping) else ())
            if isinstance(tensor, Tensor) and not captured
        ]
        return result

    def _compare(self, copies: Iterable[Copy]) -> None:
        for each in copies:
            found, differs = self._found.get(each.violation, False), each.differs()
            if isinstance(found, Tensor) and isinstance(differs, Tensor):
                # In place, so that a replayed graph adds to it too.
                found.logical_or_(differs)
            elif found is False or differs is True:
                self._found[each.violation] = differs


def inspect_drafter(llm: LLM) -> InspectedDrafter | None:
    """Inspect an engine's drafter from now on; None if the engine does not guard it (`strict_memory`)."""
    executor: Any = llm.loop.executor
    if executor.guard is None:
        return None
    executor.guard.drafter = inspected = InspectedDrafter(executor.guard.drafter)
    return inspected


def _copied(violation: str, tensor: Tensor) -> Copy:
    return Copy(violation, tensor, tensor.clone(memory_format=torch.contiguous_format))


def _tensors(batch: StepBatch) -> dict[str, Tensor]:
    """The tensors of a batch and its relay, by the names that a drafter's author knows."""
    named = {f"batch.{name}": getattr(batch, name) for name in (*BATCH, "positions", "write")}
    if batch.relay is not None:
        sampling = {f"relay.sampling.{name}": tensor for name, tensor in batch.relay.sampling._asdict().items()}
        named |= {"relay.length": batch.relay.length, "relay.last": batch.relay.last, **sampling}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


PROCESS_STATE: Final = (
    *TORCH_SETTINGS,
    Setting("the working directory", os.getcwd, os.chdir),
    Setting(
        "torch's random number generator",
        lambda: torch.get_rng_state().numpy().tobytes(),
        lambda state: torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
        shown=False,
    ),
    Setting(
        "numpy's random number generator",
        lambda: pickle.dumps(np.random.get_state()),
        lambda state: np.random.set_state(pickle.loads(state)),
        shown=False,
    ),
    Setting("Python's random number generator", random.getstate, random.setstate, shown=False),
)
# The driver of a device and a library may keep some files open after their first use.
MAX_LEFT_OPEN: Final = 8


@contextmanager
def restored_process_state() -> Iterator[list[str]]:
    """Restores PROCESS_STATE at the end; what had changed is then in the list, such as "changed the working directory
    from /home to /tmp", "left 24 more files open than before"."""
    found: list[str] = []
    gc.collect()  # files of earlier objects would be closed in between
    before, files = read(PROCESS_STATE), _open_files()
    try:
        yield found
    finally:
        left = _open_files() - files
        changed = restore(before, PROCESS_STATE)
        found += [changed] if changed is not None else []
        found += [f"left {left} more files open than before"] if left > MAX_LEFT_OPEN else []


def _open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())
