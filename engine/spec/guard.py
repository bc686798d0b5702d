"""Stands between the engine and a drafter that it does not trust: a lie costs its request, never the batch.

What a lie says of one row comes back with the step's results, and ends that row's request. What it says of the whole
batch (a shape, a host read, a lost state, an exception, a write into what it was handed) puts the drafter in
quarantine: it is not asked again and rounds verify their roots alone. Both are exact: a bad proposal is replaced by
padding, and verification is exact for any proposal. Nothing here reads the device.

The hooks see copies (`engine.spec.input_copies`), and `aux`, which nobody reads after them. Out of reach of all this: a
drafter that writes into what it was given to build with, the target's weights and KV, or into tables of the engine
that it imports. A host read that `engine.spec.sync_detector` lists as unseen costs speed, not tokens.
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

# Bit i of a row's code. The bits behind are lending.NAMES, the same in every row.
LIES: Final = (
    "proposed another root than the last known token",
    "proposed a token outside the vocabulary",
    "put a parent after its child",
    "gave a node another depth than its parents do",
    "proposed the same token twice under one node",
    "gave a node other ancestors than its parents do",
    "carried a number that is not finite",
)
ROOT, TOKEN, PARENT, DEPTH, TWINS, ANCESTORS, FINITE = range(len(LIES))


class Guard:
    """Checks what a drafter returns. error: why it is in quarantine, None while it is not.

    vocab_size: of the target. quarantined: called once, when the drafter goes into quarantine. catches: whether that
    is where an exception puts it; those of a built-in drafter are bugs of ours and pass, as EngineBug always does.
    """

    def __init__(
        self, drafter: Drafter, vocab_size: int, quarantined: Callable[[], None], catches: bool = True
    ) -> None:
        self.error: str | None = None
        self.drafter = drafter
        self._who = f"the drafter of {drafter.traits.name}"
        self._vocab_size = vocab_size
        self.on_quarantine = quarantined
        self._catches = catches
        self._wrote = False
        self._codes: Tensor | None = None
        self._lending: InputCopies | None = None

    def begin(self, batch: StepBatch) -> None:
        """Before a step: no row of it has lied yet."""
        self._codes = torch.zeros_like(batch.rows)
        self._lending = None if self.error is not None else InputCopies(batch)

    def codes(self) -> Tensor:
        """[B] int64, after the step's last hook: bit i set where LIES[i] was told since `begin`, writes behind."""
        assert self._codes is not None
        return self._codes if self._lending is None else self._codes | self._lending.written() << len(LIES)

    def read(self, codes: Sequence[int]) -> list[str | None]:
        """What ends each request of a step with these codes, None for nothing.

        A drafter that wrote goes into quarantine here. What its rows say otherwise follows from that, so they go on.
        """
        written = reduce(or_, codes, 0) >> len(LIES)
        if written:
            self._wrote = True
            self._quarantine(f"wrote into {' and '.join(name for bit, name in enumerate(NAMES) if written >> bit & 1)}")
        return [None if self._wrote else self.sentence(code) for code in codes]

    def sentence(self, code: int) -> str | None:
        """What is told to the user of a request whose row has this code; None for 0."""
        if not code:
            return None
        told = " and ".join(lie for bit, lie in enumerate(LIES) if code >> bit & 1)
        return f"{self._who} {told}; the request was stopped, its tokens so far are exact"

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState | None:
        if self.error is not None or self._lending is None:
            return None
        lent, lend = self._lending.batch, self._lending.lend
        given = lend("tokens", tokens), aux, lend("sampled", sampled), lend("following", following)
        return self._checked_state(self._asked("prime", lent, *given), len(batch.rows))

    def absorb(self, batch: StepBatch, verdict: Verdict, aux: Tensor | None) -> DraftState | None:
        if self.error is not None or self._lending is None:
            return None
        lent = self._lending.batch, self._lending.verdict(verdict), aux
        return self._checked_state(self._asked("absorb", *lent), len(batch.rows))

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        if self.error is None and self._lending is not None:
            lent = self._lending.batch
            tree = self._asked("propose", lent, lent.relay or relay)
            wrong = self._misshapen(tree, batch)
            if wrong is None and self.error is None:
                assert isinstance(tree, DraftTree)
                return self._checked_tree(tree, batch)
            if wrong is not None:
                self._quarantine(wrong)
        return chain(torch.nn.functional.pad(batch.root, (0, batch.width - 1)))

    def _asked(self, hook: str, *given: object) -> object:
        """What the drafter's hook returns, or None when it raises."""
        watch = SyncDetector()
        answer: object = None
        try:
            with nullcontext() if self.drafter.traits.reads_host else watch:
                answer = getattr(self.drafter, hook)(*given)
        except EngineBug:
            raise
        except Exception as error:
            if not self._catches:
                raise
            self._quarantine(f"raised {type(error).__name__} in {hook} ({text_of(error)})")
        if watch.seen is not None:
            self._quarantine(f"read a tensor on the host ({watch.seen}) without the trait reads_host")
        return answer

    def _quarantine(self, lie: str) -> None:
        if self.error is None:
            self.error = f"{self._who} {lie}; it is not asked again and rounds go on without drafts"
            warnings.warn(self.error, RuntimeWarning, stacklevel=2)
            self.on_quarantine()

    def _misshapen(self, tree: object, batch: StepBatch) -> str | None:
        if not isinstance(tree, DraftTree):
            return f"proposed a {type(tree).__name__}, not a DraftTree"
        rows, width = len(batch.rows), batch.width
        shapes = {"tokens": tree.tokens, "parents": tree.parents, "depths": tree.depths}
        for field, tensor in shapes.items():
            if not isinstance(tensor, Tensor) or tensor.dtype is not torch.int64:
                return f"proposed {field} that are no int64 tensor"
            if tensor.shape != (rows, width):
                return f"proposed {field} of shape {tuple(tensor.shape)} in a round of {rows} x {width} nodes"
            if tensor.device != batch.rows.device:
                return f"proposed {field} on {tensor.device} in a round on {batch.rows.device}"
        if tree.ancestors is None:
            pass
        elif not isinstance(tree.ancestors, Tensor) or tree.ancestors.dtype is not torch.bool:
            return "proposed ancestors that are no bool tensor"
        elif tree.ancestors.shape != (rows, width, width):
            return f"proposed ancestors of shape {tuple(tree.ancestors.shape)} in a round of {rows} x {width} nodes"
        elif tree.ancestors.device != batch.rows.device:
            return f"proposed ancestors on {tree.ancestors.device} in a round on {batch.rows.device}"
        longest = width - 1
        if not isinstance(tree.depth, int) or not (
            tree.depth == longest if tree.ancestors is None else min(1, longest) <= tree.depth <= longest
        ):
            return f"gave the depth {tree.depth} to a round of {width} nodes"
        return None

    def _checked_tree(self, tree: DraftTree, batch: StepBatch) -> DraftTree:
        tokens, parents, depths, ancestors, depth = tree
        order = count(batch.width, tokens.device)
        before = (order - 1).clamp(min=0)
        above = torch.minimum(parents.clamp(min=0), before)
        lies = {
            ROOT: tokens[:, :1] != batch.root,
            TOKEN: (tokens < 0) | (tokens >= self._vocab_size),
            PARENT: (parents >= order) | (parents < 0) & (order > 0) | (parents != -1) & (order == 0),
            DEPTH: (depths != (depths.gather(1, above) + 1) * (order > 0)) | (depths > depth),
        }
        if ancestors is None:
            lies[PARENT] = parents != order - 1
        else:
            places = (above * self._vocab_size + tokens)[:, 1:].sort(1).values
            lies[TWINS] = places[:, 1:] == places[:, :-1]
            line = ancestors.gather(1, above[:, :, None].expand_as(ancestors)) & (order > 0)[:, None]
            lies[ANCESTORS] = (ancestors != line | (order == order[:, None])).flatten(1)
        bad = self._note(lies)
        return tree if bad is None else _padded(tree, bad, batch.root)

    def _checked_state(self, state: object, rows: int) -> DraftState | None:
        """The state with zeros where it is not finite; None if it cannot be kept at all."""
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
                self._quarantine(f"lost the tensor {name!r} that it carries")
                return None
            if tensor.shape != (rows, *shape) or tensor.dtype is not dtype:
                self._quarantine(
                    f"carried {name!r} of shape {tuple(tensor.shape)} and {tensor.dtype}, not of {(rows, *shape)} and "
                    f"{dtype}"
                )
                return None
            assert self._codes is not None
            if tensor.device != self._codes.device:
                self._quarantine(f"carried {name!r} on {tensor.device} in a step on {self._codes.device}")
                return None
            if dtype.is_floating_point:
                wrong = ~tensor.isfinite()
                if self._note({FINITE: wrong.flatten(1)}) is not None:
                    kept[name] = tensor.masked_fill(wrong, 0)
        return kept

    def _note(self, lies: dict[int, Tensor]) -> Tensor | None:
        """Enter which rows told which lie [B, *]; the rows that told any [B], None where there are known to be none."""
        assert self._codes is not None
        if self._codes.device.type == "cpu" and not any(wrong.any() for wrong in lies.values()):
            return None
        told = sum(wrong.any(1).long() << bit for bit, wrong in lies.items())
        assert isinstance(told, Tensor)
        self._codes = self._codes | told
        return told > 0


def _padded(tree: DraftTree, bad: Tensor, root: Tensor) -> DraftTree:
    """The tree with padding in the bad rows: a chain of zeros, or in a tree distinct children of the root."""
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
