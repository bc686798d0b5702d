"""The oracle's drafts: each reads one whole text at a time, without pages, rounds or batches of requests.

With tokens t_0..t_L known and L of them in the target's KV, a draft over the target's states has consumed the pairs
(t_{p+1}, f_p), p < L, where f_p is the target's state at p. Slot L-1 proposes t_{L+1}; a proposal is fed at position L
with the draft's own state.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specmatrix.matrix.cells.cell import DRAFTS as ZOO_DRAFTS
from specmatrix.matrix.cells.cell import MODELS
from specmatrix.matrix.zoo import checkpoint
from specmatrix.matrix.zoo.bundled_net import BundledNet
from specmatrix.matrix.zoo.dflash_net import DflashNet
from specmatrix.matrix.zoo.dspark_net import DsparkNet
from specmatrix.matrix.zoo.evaluate import captured_layers
from specmatrix.matrix.zoo.heads import Head, LanguageHead, mask_of, whole
from specmatrix.matrix.zoo.net import CausalNet, rope_table, widened
from specmatrix.matrix.zoo.recipes import RECIPES
from specmatrix.matrix.zoo.registry import CHECKPOINTS

TokenPath = tuple[int, ...]
Shape = tuple[int, int, int]  # steps, topk, draft tokens


class OracleDraft(Protocol):
    """Computes state and logits of one sequence after the pairs of slots 0..L-1 and the drafts of a path."""

    def after(
        self, known: int, paths: Sequence[TokenPath], states: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """State [n, ...] and logits [n, Vd] for L = `known` and n paths of equal length; `states`: inputs per path."""
        ...

    def to_target(self, index: int) -> int:
        """The target's id of a draft id."""
        return index

    def confidence(self, known: int, path: TokenPath) -> float | None:
        """How likely the draft after `path` is right, by a head of its own; None if its logits say."""
        del known, path
        return None


class HeadDraft(OracleDraft):
    """A head over the target's captured states [T, A]. One pass over the text gives the keys and values of its slots,
    and every first draft; the drafts of a path attend to them and to each other, and read the head's own states. A head
    that drafts in parallel has its mask token and the state of that in their place, so that logits do not depend on the
    path."""

    def __init__(self, head: Head, kept: Tensor, tokens: list[int], captured: Tensor) -> None:
        self.head = head
        self.kept: list[int] = kept.tolist()
        self._text: dict[int, tuple[Tensor, Tensor]] = {}  # by layer, keys and values [1, Hkv, T - 1, D]
        slots = len(tokens) - 1
        table = rope_table(head.shape, torch.arange(slots))
        made = head.step(torch.tensor([tokens[1:]]), head.features(captured)[None, :slots], table, self._first)
        self._states, self._logits = made[0][0], made[1][0]

    def _first(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._text[index] = k, v
        return whole(index, q, k, v)

    def after(
        self, known: int, paths: Sequence[TokenPath], states: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        count, depth = len(paths), len(paths[0])
        if not depth:
            return self._states[known - 1].expand(count, -1), self._logits[known - 1].expand(count, -1)
        if mask := mask_of(self.head):
            paths, states = [(mask[0],) * depth] * count, [[mask[1]] * depth] * count
        seen = torch.ones(depth, known + depth, dtype=torch.bool).tril(known)

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            before = [each[:, :, :known].expand(count, -1, -1, -1) for each in self._text[index]]
            keys, values = (torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True))
            keys, values = widened(keys, q.shape[1]), widened(values, q.shape[1])
            return scaled_dot_product_attention(q, keys, values, attn_mask=seen)

        hidden = torch.stack([torch.stack([*own]) for own in states])
        table = rope_table(self.head.shape, torch.arange(known, known + depth))
        state, logits = self.head.step(torch.tensor(paths), hidden, table, attend)
        return state[:, -1], logits[:, -1]

    def to_target(self, index: int) -> int:
        return self.kept[index]


class RotatedDraft(OracleDraft):
    """One head per step: head m reads t_{p+1+m} and head m-1's state at p, for every p < L."""

    def __init__(self, heads: Sequence[Head], tokens: list[int], captured: Tensor) -> None:
        self.heads, self.tokens, slots = heads, tokens, len(tokens) - 1
        table, hidden = rope_table(heads[0].shape, torch.arange(slots)), heads[0].features(captured)[None, :slots]
        self._first = heads[0].step(torch.tensor([tokens[1:]]), hidden, table, whole)

    def after(
        self, known: int, paths: Sequence[TokenPath], states: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        depth = len(paths[0])
        if not depth:
            state, logits = self._first
            return state[:, :known].expand(len(paths), -1, -1), logits[:, known - 1].expand(len(paths), -1)
        head = self.heads[depth]
        rows = torch.tensor([[*self.tokens[1 + depth : known + 1], *path] for path in paths])
        hidden = torch.stack([own[-1] for own in states])
        state, logits = head.step(rows, hidden, rope_table(head.shape, torch.arange(known)), whole)
        return state, logits[:, -1]


class BlockDraft(OracleDraft):
    """A block of `width` positions from t_L; its logits at a depth depend on the last token of the path at most."""

    def __init__(self, net: DflashNet, width: int, tokens: list[int], captured: Tensor) -> None:
        self.net, self.width, self.tokens, self.captured = net, width, torch.tensor([tokens]), captured[None]
        self.blocks: dict[int, Tensor] = {}

    def _block(self, known: int) -> Tensor:
        """Hidden states [width - 1, H]."""
        if known not in self.blocks:
            self.blocks[known] = self.net.rows(self.tokens, self.captured, torch.tensor([[known]]), self.width)[0, 0]
        return self.blocks[known]

    def after(
        self, known: int, paths: Sequence[TokenPath], states: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        del states
        hidden = self._block(known)[len(paths[0])]
        previous = torch.tensor([path[-1] if path else int(self.tokens[0, known]) for path in paths])
        return torch.zeros(len(paths), 0), self.net.corrected(hidden.expand(len(paths), -1), previous)


class SparkDraft(BlockDraft):
    """A block of `width` - 1 drafts behind t_L, each of which depends on those before it."""

    net: DsparkNet

    def _behind(self, known: int, path: TokenPath) -> tuple[Tensor, Tensor]:
        """The states of the drafts up to the one after `path`, and the tokens before each."""
        return self._block(known)[: len(path) + 1], torch.tensor([int(self.tokens[0, known]), *path])

    def after(
        self, known: int, paths: Sequence[TokenPath], states: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        del states
        logits = [self.net.corrected(*self._behind(known, path))[-1] for path in paths]
        return torch.zeros(len(paths), 0), torch.stack(logits)

    def confidence(self, known: int, path: TokenPath) -> float | None:
        return float(self.net.sure(*self._behind(known, path))[-1].sigmoid())


# Per target: algorithm to draft checkpoint; MTP layers are part of the target's. `nextn` is the default resolution (a
# layer per step if there are enough), SINGLE uses the first layer only.
SINGLE = "nextn.single"
LAYERS = 2
DRAFTS = {
    target: {algorithm: draft for (name, algorithm), draft in ZOO_DRAFTS.items() if name == model}
    | (dict.fromkeys(("nextn", SINGLE), target) if RECIPES[target].bundled_fit else {})
    for model, target in MODELS.items()
}


def is_layered(algorithm: str, shape: Shape) -> bool:
    """True if each step of a chain has its own MTP layer."""
    return algorithm == "nextn" and shape[1] == 1 and shape[0] <= LAYERS


def key_of(algorithm: str, shape: Shape) -> tuple[str, int]:
    """Shapes with equal keys share a draft; each block length and the chain of MTP layers are separate drafts."""
    if algorithm.partition(".")[0] in ("dflash", "dspark"):
        return algorithm, shape[2]
    return algorithm, int(is_layered(algorithm, shape))


class Drafts:
    """The stored drafts of a target."""

    def __init__(self, name: str) -> None:
        cpu = torch.device("cpu")
        self.target = checkpoint.read_net(CHECKPOINTS / name, RECIPES[name], cpu)
        self.nets: dict[str, CausalNet | tuple[checkpoint.Draft, Tensor]] = {}
        self.recipes = {algorithm: RECIPES[draft] for algorithm, draft in DRAFTS[name].items()}
        for algorithm, recipe in self.recipes.items():
            if recipe.kind == "standalone":
                self.nets[algorithm] = checkpoint.read_net(CHECKPOINTS / recipe.name, recipe, cpu)
            elif recipe.target:
                self.nets[algorithm] = checkpoint.read_draft(CHECKPOINTS / recipe.name, recipe, self.target, cpu)

    def of(self, algorithm: str, shape: Shape, tokens: list[int]) -> OracleDraft:
        """The draft for one sequence and shape."""
        found, target = self.nets.get(algorithm), self.target
        recipe = self.recipes[algorithm]
        if isinstance(found, CausalNet):
            ids, mask = torch.arange(recipe.shape.vocab_size), recipe.mask_id if recipe.parallel else None
            return HeadDraft(LanguageHead(found, mask), ids, tokens, torch.zeros(len(tokens), 0))
        captured = target(torch.tensor([tokens]), aux=captured_layers(self.recipes[algorithm]))[1]
        assert captured is not None
        if found is None:
            assert isinstance(target, BundledNet)
            heads = target.bundled()
            if len(heads) > 1 and key_of(algorithm, shape)[1]:
                return RotatedDraft(heads, tokens, captured[0])
            return HeadDraft(heads[0], torch.arange(target.shape.vocab_size), tokens, captured[0])
        net, kept = found
        if isinstance(net, DsparkNet):
            return SparkDraft(net, shape[2], tokens, captured[0])
        if isinstance(net, DflashNet):
            return BlockDraft(net, shape[2], tokens, captured[0])
        return HeadDraft(net, kept, tokens, captured[0])
