"""Validates an untrusted drafter's output; an invalid proposal fails only its own request.

An error in one row is returned with the step's results and ends that row's request. An error of the whole batch (a
wrong shape, a missing state, an exception, a changed torch setting) disables the drafter: it is not called again, and
rounds verify only their roots. Tokens stay exact in both cases: an invalid proposal is replaced by padding, and
verification is exact for any proposal. The guard never synchronises with the device.

A registered drafter's hooks receive copies, and `aux`, which is not read afterwards; the engine uses a copy of the
returned tree. So the drafter's writes, even later ones from another thread, do not reach the engine. Not protected: the
objects that the drafter was built with, the target's weights and KV, and engine tables that the drafter imports. A
built-in drafter works on the engine's own tensors; its writes, and slow operations such as host reads, are found by the
conformance suite (`specmatrix contract`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy as shallow_copy
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor

from specmatrix.engine.device.batch import StepBatch, count
from specmatrix.engine.device.relay import DraftState, Relay
from specmatrix.engine.device.sampling import SamplingRows
from specmatrix.engine.spec.drafter import Drafter, DraftTree, VerifyResult, chain
from specmatrix.errors import EngineBug, is_interrupt, text_of


class Setting(NamedTuple):
    """A process-wide setting: how to read and write it. shown: formats a value for messages."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    shown: bool = True


def _set_default_device(device: torch.device) -> None:
    # None restores the default CPU; a device context would slow every torch call.
    torch.set_default_device(None if device == torch.device("cpu") else device)


# The hooks' context restores the grad and inference modes.
TORCH_SETTINGS: Final = (
    Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("the default device", torch.get_default_device, _set_default_device),
    Setting("the number of threads", torch.get_num_threads, torch.set_num_threads),
    Setting("the deterministic debug mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    Setting("the float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)


def read(settings: Sequence[Setting] = TORCH_SETTINGS) -> list[Any]:
    """Current values, for `restore`."""
    return [setting.read() for setting in settings]


def restore(before: Sequence[Any], settings: Sequence[Setting] = TORCH_SETTINGS) -> str | None:
    """Restore settings that changed since `read`; returns their description, None if none changed."""
    after = read(settings)
    if after == [*before]:
        return None
    rows = [row for row in zip(settings, before, after, strict=True) if row[1] != row[2]]
    for setting, old, _ in rows:
        setting.write(old)
    return "changed " + " and ".join(
        f"{setting.name} from {old} to {new}" if setting.shown else setting.name for setting, old, new in rows
    )


# Violation i sets bit i of a row's code.
VIOLATIONS: Final = (
    "proposed a root other than the last known token",
    "proposed a token outside the vocabulary",
    "put a parent after its child",
    "gave a node a depth that contradicts its parent",
    "proposed the same token twice under one node",
    "gave a node ancestors that contradict its parent",
    "carried a value that is not finite",
    "asked to verify fewer than one or more than all of its nodes",
)
ROOT, TOKEN, PARENT, DEPTH, DUPLICATE, ANCESTORS, FINITE, LENGTH = range(len(VIOLATIONS))
# Batch tensors copied for a drafter; positions and write slots are derived from them.
BATCH: Final = ("rows", "start", "root", "slots", "lengths", "generations")

Checked = TypeVar("Checked")


class InvalidOutputError(Exception):
    """A hook returned unusable output; the message says what is wrong with it."""


class Guard:
    """Validates what a drafter returns. error: why it is disabled, None if it is not.

    vocab_size: the target's. quarantined: called once, when the drafter goes into quarantine. built_in: the drafter
    gets the engine's own tensors, and its exceptions are engine bugs, which always propagate. chains: no
    tree is valid.
    """

    def __init__(
        self, drafter: Drafter, vocab_size: int, quarantined: Callable[[], None], built_in: bool, chains: bool = False
    ) -> None:
        self.error: str | None = None
        self.drafter = drafter
        self._subject = f"the drafter of {drafter.traits.name}"
        self._carries = drafter.carries
        self._vocab_size = vocab_size
        self.on_quarantine = quarantined
        self._built_in, self._chains = built_in, chains
        self._inference = torch.inference_mode()
        self._codes: Tensor | None = None
        self._batch: StepBatch | None = None

    def begin(self, batch: StepBatch) -> None:
        """Call before a step; resets the codes."""
        self._codes = torch.zeros_like(batch.rows)
        self._batch = None if self.error is not None else batch if self._built_in else copied_batch(batch)

    def codes(self) -> Tensor:
        """[B] int64 after a step's last hook; bit i stands for VIOLATIONS[i]."""
        assert self._codes is not None
        return self._codes

    def message(self, code: int) -> str | None:
        """Error message for a row's code; None for 0."""
        if not code:
            return None
        found = " and ".join(text for bit, text in enumerate(VIOLATIONS) if code >> bit & 1)
        return f"{self._subject} {found}; the request was stopped, and its tokens so far are exact"

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState | None:
        tokens, sampled, following = map(self._lent, (tokens, sampled, following))
        return self._carried("prime", tokens, aux, sampled, following)

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> DraftState | None:
        if self._batch is not None and batch.lengths is not None and not self._built_in:
            self._batch.shorten(copied(batch.lengths))
        return self._carried("absorb", VerifyResult(*map(self._lent, verdict[:3])), aux)

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        own = relay if self._batch is None or self._batch.relay is None else self._batch.relay
        tree = self._call("propose", lambda tree: _shaped_tree(tree, batch, self._vocab_size, self._chains), own)
        if tree is None:
            return chain(torch.nn.functional.pad(batch.root, (0, batch.width - 1)))
        return self._checked_tree(DraftTree(*(self._lent(p) if isinstance(p, Tensor) else p for p in tree)), batch)

    def _lent(self, tensor: Tensor) -> Tensor:
        return tensor if self._built_in else copied(tensor)

    def _call(self, hook: str, check: Callable[[object], Checked], *given: object) -> Checked | None:
        """A hook's validated result; None if the drafter is disabled, possibly by this call.

        KeyboardInterrupt and exceptions of signal handlers propagate.
        """
        if self.error is not None or self._batch is None:
            return None
        checked, before = None, read()
        try:
            with self._inference:
                result = getattr(self.drafter, hook)(self._batch, *given)
            checked = check(result)
        except InvalidOutputError as invalid:
            self._quarantine(str(invalid))
        except BaseException as error:  # a registered drafter may raise anything
            if self._built_in or isinstance(error, EngineBug) or is_interrupt(error):
                raise
            self._quarantine(f"raised {type(error).__name__} in {hook} ({text_of(error)})")
        finally:
            changed = restore(before)
        if changed is not None:
            self._quarantine(f"{changed} in {hook}")
        return checked if self.error is None else None

    def _quarantine(self, fault: str) -> None:
        if self.error is None:
            self.error = f"{self._subject} {fault}; it is not called again, and rounds continue without drafts"
            warnings.warn(self.error, RuntimeWarning, stacklevel=2)
            self.on_quarantine()

    def _carried(self, hook: str, *given: object) -> DraftState | None:
        """A hook's returned state, with non-finite values replaced by zeros."""
        state = self._call(hook, self._own_state, *given)
        for name, _, dtype, _ in self._carries if state is not None else ():
            if dtype.is_floating_point:
                wrong = ~state[name].isfinite()
                if self._note({FINITE: wrong[..., None].flatten(1)}) is not None:
                    state[name] = state[name].masked_fill(wrong, 0)
        return state

    def _own_state(self, state: object) -> dict[str, Tensor] | None:
        """Checks that a returned state has the relay's shapes and dtypes."""
        if state is not None and not isinstance(state, Mapping):
            raise InvalidOutputError(f"carried a {type(state).__name__}, not a mapping of tensors")
        if state is None and not self._carries:
            return None
        rows = self.codes()
        kept: dict[str, Tensor] = dict(state or {})
        for name, shape, dtype, _ in self._carries:
            _check_tensor(f"carried {name!r}", kept.get(name), (len(rows), *shape), dtype, rows.device)
        return kept

    def _checked_tree(self, tree: DraftTree, batch: StepBatch) -> DraftTree:
        tokens, parents, depths, ancestors, depth, _, lengths, sure = tree
        order = count(batch.width, tokens.device)
        before = (order - 1).clamp(min=0)
        above = torch.minimum(parents.clamp(min=0), before)
        violations = {
            ROOT: tokens[:, :1] != batch.root,
            TOKEN: (tokens < 0) | (tokens >= self._vocab_size),
            PARENT: (parents >= order) | (parents < 0) & (order > 0) | (parents != -1) & (order == 0),
            DEPTH: (depths != (depths.gather(1, above) + 1) * (order > 0)) | (depths > depth),
        }
        if ancestors is None:
            violations[PARENT] = parents != order - 1
        else:
            places = (above * self._vocab_size + tokens)[:, 1:].sort(1).values
            violations[DUPLICATE] = places[:, 1:] == places[:, :-1]
            line = ancestors.gather(1, above[:, :, None].expand_as(ancestors)) & (order > 0)[:, None]
            violations[ANCESTORS] = (ancestors != line | (order == order[:, None])).flatten(1)
        if lengths is not None:
            violations[LENGTH] = ((lengths < 1) | (lengths > batch.width))[:, None]
        bad = self._note(violations)
        if bad is None:
            return tree
        lengths = None if lengths is None else lengths.masked_fill(bad, 1)
        return _padded(tree, bad, batch.root)._replace(q=_padded_law(tree, bad), lengths=lengths, confidences=sure)

    def _note(self, violations: dict[int, Tensor]) -> Tensor | None:
        """Record violations [B, *] by row. Returns the rows with any [B], or None if it is known that there are
        none.
        """
        assert self._codes is not None
        if self._codes.device.type == "cpu" and not any(wrong.any() for wrong in violations.values()):
            return None
        codes = sum(wrong.any(1).long() << bit for bit, wrong in violations.items())
        assert isinstance(codes, Tensor)
        self._codes = self._codes | codes
        return codes > 0


def copied(tensor: Tensor) -> Tensor:
    """A contiguous copy: every element has its own memory, also for an expanded tensor."""
    return tensor.clone(memory_format=torch.contiguous_format)


def copied_batch(batch: StepBatch) -> StepBatch:
    """A batch for the drafter, whose relay shares only the carried state with the engine's.

    Otherwise a drafter that writes to `batch.rows` would overwrite a tensor shared by rounds and engines.
    """
    given = {name: getattr(batch, name) for name in BATCH}
    copies = {name: copied(tensor) for name, tensor in given.items() if tensor is not None}
    return replace(batch, relay=None if batch.relay is None else _copied_relay(batch.relay), **copies)


def _copied_relay(relay: Relay) -> Relay:
    """A relay whose writes stay in the copy."""
    own = shallow_copy(relay)
    for name in ("length", "last", "limit", "budget"):
        setattr(own, name, copied(getattr(relay, name)))
    own.settle()
    own.sampling = SamplingRows(*map(copied, relay.sampling))
    return own


def _shaped_tree(tree: object, batch: StepBatch, vocab_size: int, chains: bool) -> DraftTree:
    """Checks a proposal's shapes and dtypes against the round."""
    if not isinstance(tree, DraftTree):
        raise InvalidOutputError(f"proposed a {type(tree).__name__}, not a DraftTree")
    shape = len(batch.rows), batch.width
    for field, tensor in zip(DraftTree._fields[:3], tree[:3], strict=True):
        _check_tensor(f"proposed {field}", tensor, shape, torch.int64, batch.rows.device)
    if tree.ancestors is not None:
        if chains:
            raise InvalidOutputError("proposed a tree, for which only speculative_acceptance match is defined")
        _check_tensor("proposed ancestors", tree.ancestors, (*shape, batch.width), torch.bool, batch.rows.device)
    if tree.q is not None:
        _check_tensor("proposed q", tree.q, (shape[0], shape[1] - 1, vocab_size), torch.float32, batch.rows.device)
    if tree.lengths is not None:
        _check_tensor("proposed lengths", tree.lengths, shape[:1], torch.int64, batch.rows.device)
    if tree.confidences is not None:
        sure = shape[0], shape[1] - 1
        _check_tensor("proposed confidences", tree.confidences, sure, torch.float32, batch.rows.device)
    longest = batch.width - 1
    least = longest if tree.ancestors is None else min(1, longest)
    if not isinstance(tree.depth, int) or not least <= tree.depth <= longest:
        raise InvalidOutputError(f"proposed depth {tree.depth} in a round of {batch.width} nodes")
    return tree


def _check_tensor(did: str, tensor: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    if not _is_plain(tensor):
        raise InvalidOutputError(f"{did} of type {type(tensor).__name__}, expected a dense tensor")
    if tensor.shape != shape or tensor.dtype is not dtype:
        given = f"shape {tuple(tensor.shape)} and {tensor.dtype}"
        raise InvalidOutputError(f"{did} with {given}, expected {shape} and {dtype}")
    if tensor.device != device:
        raise InvalidOutputError(f"{did} on device {tensor.device} in a step on {device}")


def _is_plain(tensor: object) -> TypeGuard[Tensor]:
    """Whether a value is a dense Tensor or Parameter; other subclasses may run arbitrary code."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and not tensor.is_nested


def _padded(tree: DraftTree, bad: Tensor, root: Tensor) -> DraftTree:
    """The tree with bad rows padded: a chain of zeros, or distinct children of the root."""
    order, rows = count(tree.tokens.shape[1], bad.device), bad[:, None]
    if tree.ancestors is None:
        tokens = torch.where(rows, torch.cat((root, torch.zeros_like(tree.tokens[:, 1:])), 1), tree.tokens)
        return chain(tokens)
    star = torch.cat((root, (order[1:] - 1).expand(len(bad), -1)), 1)
    parents = torch.where(order > 0, 0, -1)
    alone = (order == order[:, None]) | (order == 0)
    return DraftTree(
        torch.where(rows, star, tree.tokens),
        torch.where(rows, parents, tree.parents),
        torch.where(rows, parents + 1, tree.depths).clamp(max=tree.depth),
        torch.where(rows[:, :, None], alone, tree.ancestors),
        tree.depth,
    )


def _padded_law(tree: DraftTree, bad: Tensor) -> Tensor | None:
    """The tree's q, with bad rows replaced by the padding's point masses."""
    if tree.q is None:
        return None
    point = torch.zeros_like(tree.q)
    point[..., 0] = 1.0
    return torch.where(bad[:, None, None], point, tree.q)
