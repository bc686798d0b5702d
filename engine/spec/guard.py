"""Validates an untrusted drafter's output; an invalid proposal fails only its own request.

An error in one row is reported with the step's results and ends that row's request. An error that concerns the whole
batch (a shape, a host read, a missing state, an exception, a write into an input) puts the drafter in quarantine: it is
not called again and rounds verify only their roots. Tokens stay exact in both cases: an invalid proposal is replaced by
padding, and verification is exact for any proposal. The guard never waits for the device.

The hooks receive copies (`engine.spec.input_copies`), and `aux`, which is not read after them. Not protected: what the
drafter was built with, the target's weights and KV, and engine tables that the drafter imports. A host read that
`engine.spec.sync_detector` cannot detect costs speed, not correctness.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import reduce
from operator import or_
from typing import Final

import torch
from torch import Tensor

from specmatrix.engine.device.batch import StepBatch, count
from specmatrix.engine.device.relay import DraftState, Relay
from specmatrix.engine.spec.drafter import Drafter, DraftTree, Verdict, chain
from specmatrix.engine.spec.input_copies import NAMES, InputCopies
from specmatrix.engine.spec.sync_detector import SyncDetector
from specmatrix.errors import EngineBug, text_of

# Bit i of a row's code. The higher bits are input_copies.NAMES, the same in every row.
VIOLATIONS: Final = (
    "proposed a root other than the last known token",
    "proposed a token outside the vocabulary",
    "put a parent after its child",
    "gave a node a depth that contradicts its parent",
    "proposed the same token twice under one node",
    "gave a node ancestors that contradict its parent",
    "carried a value that is not finite",
)
ROOT, TOKEN, PARENT, DEPTH, DUPLICATE, ANCESTORS, FINITE = range(len(VIOLATIONS))


class Guard:
    """Validates what a drafter returns. error: why it is in quarantine, None if it is not.

    vocab_size: the target's. quarantined: called once, when the drafter goes into quarantine. catches: whether an
    exception puts it there; a built-in drafter's exceptions are engine bugs and propagate, as EngineBug always does.
    """

    def __init__(
        self, drafter: Drafter, vocab_size: int, quarantined: Callable[[], None], catches: bool = True
    ) -> None:
        self.error: str | None = None
        self.drafter = drafter
        self._subject = f"the drafter of {drafter.traits.name}"
        self._vocab_size = vocab_size
        self.on_quarantine = quarantined
        self._catches = catches
        self._wrote = False
        self._codes: Tensor | None = None
        self._copies: InputCopies | None = None

    def begin(self, batch: StepBatch) -> None:
        """Call before a step; resets the codes."""
        self._codes = torch.zeros_like(batch.rows)
        self._copies = None if self.error is not None else InputCopies(batch)

    def codes(self) -> Tensor:
        """[B] int64, read after a step's last hook: bit i is set for VIOLATIONS[i], the higher bits for writes."""
        assert self._codes is not None
        return self._codes if self._copies is None else self._codes | self._copies.written() << len(VIOLATIONS)

    def read(self, codes: Sequence[int]) -> list[str | None]:
        """The error that ends each request of a step with these codes, None for none.

        A drafter that wrote into its inputs goes into quarantine here. Other violations may follow from that write, so
        no request ends.
        """
        written = reduce(or_, codes, 0) >> len(VIOLATIONS)
        if written:
            self._wrote = True
            self._quarantine(f"wrote into {' and '.join(name for bit, name in enumerate(NAMES) if written >> bit & 1)}")
        return [None if self._wrote else self.message(code) for code in codes]

    def message(self, code: int) -> str | None:
        """The error message for a request whose row has this code; None for 0."""
        if not code:
            return None
        found = " and ".join(text for bit, text in enumerate(VIOLATIONS) if code >> bit & 1)
        return f"{self._subject} {found}; the request was stopped, and its tokens so far are exact"

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState | None:
        if self.error is not None or self._copies is None:
            return None
        copy = self._copies.copy
        given = copy("tokens", tokens), aux, copy("sampled", sampled), copy("following", following)
        return self._checked_state(self._call("prime", self._copies.batch, *given), len(batch.rows))

    def absorb(self, batch: StepBatch, verdict: Verdict, aux: Tensor | None) -> DraftState | None:
        if self.error is not None or self._copies is None:
            return None
        given = self._copies.batch, self._copies.verdict(verdict), aux
        return self._checked_state(self._call("absorb", *given), len(batch.rows))

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        if self.error is None and self._copies is not None:
            given = self._copies.batch
            tree = self._call("propose", given, given.relay or relay)
            wrong = self._misshapen(tree, batch)
            if wrong is None and self.error is None:
                assert isinstance(tree, DraftTree)
                return self._checked_tree(tree, batch)
            if wrong is not None:
                self._quarantine(wrong)
        return chain(torch.nn.functional.pad(batch.root, (0, batch.width - 1)))

    def _call(self, hook: str, *given: object) -> object:
        """The result of the drafter's hook, or None if it raises."""
        detector = SyncDetector()
        result: object = None
        try:
            with nullcontext() if self.drafter.traits.reads_host else detector:
                result = getattr(self.drafter, hook)(*given)
        except EngineBug:
            raise
        except Exception as error:
            if not self._catches:
                raise
            self._quarantine(f"raised {type(error).__name__} in {hook} ({text_of(error)})")
        if detector.seen is not None:
            self._quarantine(f"read a tensor on the host ({detector.seen}) without the trait reads_host")
        return result

    def _quarantine(self, fault: str) -> None:
        if self.error is None:
            self.error = f"{self._subject} {fault}; it is not called again, and rounds continue without drafts"
            warnings.warn(self.error, RuntimeWarning, stacklevel=2)
            self.on_quarantine()

    def _misshapen(self, tree: object, batch: StepBatch) -> str | None:
        if not isinstance(tree, DraftTree):
            return f"proposed a {type(tree).__name__}, not a DraftTree"
        rows, width = len(batch.rows), batch.width
        shapes = {"tokens": tree.tokens, "parents": tree.parents, "depths": tree.depths}
        for field, tensor in shapes.items():
            if not isinstance(tensor, Tensor) or tensor.dtype is not torch.int64:
                return f"proposed {field} that are not an int64 tensor"
            if tensor.shape != (rows, width):
                return f"proposed {field} of shape {tuple(tensor.shape)} in a round of {rows} x {width} nodes"
            if tensor.device != batch.rows.device:
                return f"proposed {field} on device {tensor.device} in a round on {batch.rows.device}"
        if tree.ancestors is None:
            pass
        elif not isinstance(tree.ancestors, Tensor) or tree.ancestors.dtype is not torch.bool:
            return "proposed ancestors that are not a bool tensor"
        elif tree.ancestors.shape != (rows, width, width):
            return f"proposed ancestors of shape {tuple(tree.ancestors.shape)} in a round of {rows} x {width} nodes"
        elif tree.ancestors.device != batch.rows.device:
            return f"proposed ancestors on device {tree.ancestors.device} in a round on {batch.rows.device}"
        longest = width - 1
        if not isinstance(tree.depth, int) or not (
            tree.depth == longest if tree.ancestors is None else min(1, longest) <= tree.depth <= longest
        ):
            return f"proposed depth {tree.depth} in a round of {width} nodes"
        return None

    def _checked_tree(self, tree: DraftTree, batch: StepBatch) -> DraftTree:
        tokens, parents, depths, ancestors, depth = tree
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
        bad = self._note(violations)
        return tree if bad is None else _padded(tree, bad, batch.root)

    def _checked_state(self, state: object, rows: int) -> DraftState | None:
        """The state with non-finite values replaced by zeros; None if it is unusable."""
        if self.error is not None:
            return None
        if state is not None and not isinstance(state, Mapping):
            self._quarantine(f"carried a {type(state).__name__}, not a mapping of tensors")
            return None
        if not self.drafter.carries:
            return state
        kept: dict[str, Tensor] = dict(state or {})
        for name, shape, dtype, _ in self.drafter.carries:
            tensor = kept.get(name)
            if not isinstance(tensor, Tensor):
                self._quarantine(f"did not return its carried tensor {name!r}")
                return None
            if tensor.shape != (rows, *shape) or tensor.dtype is not dtype:
                self._quarantine(
                    f"carried {name!r} with shape {tuple(tensor.shape)} and {tensor.dtype}, expected "
                    f"{(rows, *shape)} and {dtype}"
                )
                return None
            assert self._codes is not None
            if tensor.device != self._codes.device:
                self._quarantine(f"carried {name!r} on device {tensor.device} in a step on {self._codes.device}")
                return None
            if dtype.is_floating_point:
                wrong = ~tensor.isfinite()
                if self._note({FINITE: wrong.flatten(1)}) is not None:
                    kept[name] = tensor.masked_fill(wrong, 0)
        return kept

    def _note(self, violations: dict[int, Tensor]) -> Tensor | None:
        """Record each row's violations [B, *]. Returns the rows with any [B], None if there are known to be none."""
        assert self._codes is not None
        if self._codes.device.type == "cpu" and not any(wrong.any() for wrong in violations.values()):
            return None
        codes = sum(wrong.any(1).long() << bit for bit, wrong in violations.items())
        assert isinstance(codes, Tensor)
        self._codes = self._codes | codes
        return codes > 0


def _padded(tree: DraftTree, bad: Tensor, root: Tensor) -> DraftTree:
    """The tree with padding in the bad rows: a chain of zeros, or for a tree distinct children of the root."""
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
