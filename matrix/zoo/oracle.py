"""Independent, naive implementation of greedy speculative decoding, the reference of the acceptance gate.

The target runs in transformers; a draft reads a whole text at once, and what is drafted behind each of its tokens
without pages, rounds or batching of requests. No computation is shared with the engine.
`python -m specmatrix.matrix.zoo.oracle` writes a file per target.

With tokens t_0..t_L known and L of them in the target's KV, a draft over the target's states has consumed the pairs
(t_{p+1}, f_p), p < L, where f_p is the target's state at p. Slot L-1 proposes t_{L+1}; a proposal is fed at position L
with the draft's own state.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy
import torch
from tokenizers import Tokenizer
from torch import Tensor

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.defaults import SHAPE
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import DRAFTS as ZOO_DRAFTS
from specmatrix.matrix.cells.cell import MODELS, model_facts
from specmatrix.matrix.zoo import absolute, checkpoint
from specmatrix.matrix.zoo.bundled_net import BundledNet
from specmatrix.matrix.zoo.evaluate import captured_layers
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from specmatrix.matrix.zoo.heads import DflashNet, DsparkNet, Head, LanguageHead, mask_of, whole
from specmatrix.matrix.zoo.net import CausalNet, rope_table, widened
from specmatrix.matrix.zoo.registry import CHECKPOINTS, CLOSE, RECIPES, TEST, margins_file, oracle_file
from specmatrix.matrix.zoo.tokenizer import EOS_ID

TokenPath = tuple[int, ...]
States = Sequence[Sequence[Tensor]]  # a head's inputs along each path
Shape = tuple[int, int, int]  # steps, topk, draft tokens


class OracleDraft(Protocol):
    """Computes states and logits of one sequence after the pairs of slots 0..L-1 and the drafts of a path."""

    def after(self, known: Sequence[int], paths: Sequence[TokenPath], states: States) -> tuple[Tensor, Tensor]:
        """State [n, ...] and logits [n, Vd] for n paths of equal length, each behind its L of `known`; `states`: inputs
        per path."""
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

    def after(self, known: Sequence[int], paths: Sequence[TokenPath], states: States) -> tuple[Tensor, Tensor]:
        slots, depth = torch.tensor(known), len(paths[0])
        if not depth:
            return self._states[slots - 1], self._logits[slots - 1]
        if mask := mask_of(self.head):
            paths, states = [(mask[0],) * depth] * len(paths), [[mask[1]] * depth] * len(paths)
        behind = (torch.arange(max(known)) >= slots[:, None])[:, None, None]
        later = torch.ones(depth, depth, dtype=torch.bool).triu(1)

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            text = [widened(each[:, :, : max(known)], q.shape[1])[0] for each in self._text[index]]
            keys, values = widened(k, q.shape[1]), widened(v, q.shape[1])
            own = (q @ keys.mT).masked_fill(later, -math.inf)
            scores = torch.cat((_of_all(q, text[0].mT).masked_fill(behind, -math.inf), own), -1)
            shares = (scores * q.shape[-1] ** -0.5).softmax(-1)
            found: Tensor = _of_all(shares[..., : max(known)], text[1]) + shares[..., max(known) :] @ values
            return found

        hidden = torch.stack([torch.stack([*own]) for own in states])
        table = rope_table(self.head.shape, slots[:, None] + torch.arange(depth))
        table = table[0][:, None], table[1][:, None]
        state, logits = self.head.step(torch.tensor(paths), hidden, table, attend)
        return state[:, -1], logits[:, -1]

    def to_target(self, index: int) -> int:
        return self.kept[index]


def _of_all(rows: Tensor, text: Tensor) -> Tensor:
    """rows [n, H, d, X] times [H, X, Y], which all of them share."""
    made: Tensor = rows.transpose(0, 1).flatten(1, 2) @ text
    return made.view(len(text), len(rows), -1, text.shape[-1]).transpose(0, 1)


class RotatedDraft(OracleDraft):
    """One head per step: head m reads t_{p+1+m} and head m-1's state at p, for every p < L."""

    def __init__(self, heads: Sequence[Head], tokens: list[int], captured: Tensor) -> None:
        self.heads, self.tokens, slots = heads, tokens, len(tokens) - 1
        table, hidden = rope_table(heads[0].shape, torch.arange(slots)), heads[0].features(captured)[None, :slots]
        self._first = heads[0].step(torch.tensor([tokens[1:]]), hidden, table, whole)

    def after(self, known: Sequence[int], paths: Sequence[TokenPath], states: States) -> tuple[Tensor, Tensor]:
        rows, last, depth = torch.arange(len(known)), torch.tensor(known) - 1, len(paths[0])
        if not depth:
            state, logits = self._first
            return state.expand(len(paths), -1, -1), logits[0, last]
        head, slots = self.heads[depth], len(self.tokens) - 1
        read = [[*self.tokens[1 + depth : one + 1], *path] for one, path in zip(known, paths, strict=True)]
        # What stands behind a row's last slot is seen by none before it.
        words = torch.tensor([[*row, *[0] * (slots - len(row))] for row in read])
        hidden = torch.stack([own[-1] for own in states])
        state, logits = head.step(words, hidden, rope_table(head.shape, torch.arange(slots)), whole)
        return state, logits[rows, last]


class BlockDraft(OracleDraft):
    """A block of `width` positions from t_L; its logits at a depth depend on the last token of the path at most."""

    def __init__(self, net: DflashNet, width: int, tokens: list[int], captured: Tensor) -> None:
        self.net, self.width, self.tokens, self.captured = net, width, torch.tensor([tokens]), captured[None]
        self.blocks: dict[int, Tensor] = {}

    def _behind(self, known: Sequence[int], paths: Sequence[TokenPath]) -> tuple[Tensor, Tensor]:
        """Hidden states of the drafts up to the one after each path [n, depth + 1, H], and the tokens before each."""
        if missing := [one for one in dict.fromkeys(known) if one not in self.blocks]:
            made = self.net.rows(self.tokens, self.captured, torch.tensor([missing]), self.width)[0]
            self.blocks.update(zip(missing, made, strict=True))
        hidden = torch.stack([self.blocks[one][: len(paths[0]) + 1] for one in known])
        return hidden, torch.cat((self.tokens[0, known][:, None], torch.tensor(paths, dtype=torch.int64)), 1)

    def after(self, known: Sequence[int], paths: Sequence[TokenPath], states: States) -> tuple[Tensor, Tensor]:
        del states
        hidden, previous = self._behind(known, paths)
        return torch.zeros(len(paths), 0), self.net.corrected(hidden[:, -1], previous[:, -1])


class SparkDraft(BlockDraft):
    """A block of `width` - 1 drafts behind t_L, each of which depends on those before it."""

    net: DsparkNet

    def after(self, known: Sequence[int], paths: Sequence[TokenPath], states: States) -> tuple[Tensor, Tensor]:
        del states
        return torch.zeros(len(paths), 0), self.net.corrected(*self._behind(known, paths))[:, -1]

    def confidence(self, known: int, path: TokenPath) -> float | None:
        return float(self.net.sure(*self._behind([known], [path]))[0, -1].sigmoid())


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


PROMPTS: Final = 32
LIMIT: Final = 96
# Tokens past the end of a continuation, to compare the last round's drafts with.
BEYOND: Final = 16
WIDEST: Final = 8
# Maximum paths that a draft reads in one forward.
TOGETHER: Final = 256
# Decimal places of a stored log-probability, about float32's precision.
DIGITS: Final = 6
# Values that cells may request; the oracle covers everything that they resolve to.
STEPS: Final = ("auto", 1, 2, 3, 5, 7)
TOPK: Final = ("auto", 1, 2, 4)
WIDTHS: Final = ("auto", 4, 6, 8, 16)
# Drafts whose depth may adapt from round to round, and the maximum depth.
ADAPTING: Final = ("eagle", "eagle3", "eagle3.parallel", SINGLE)
DEEPEST: Final = 7
CHAIN: Final = (DEEPEST, 1, DEEPEST + 1)
Legal: TypeAlias = Callable[[int, TokenPath], numpy.ndarray]


class Proposals:
    """The WIDEST most probable children (probability, target id) of requested paths, computed once each. legal: which
    tokens of the target may follow a path for L = `known`, as bool [V]; None if all may."""

    def __init__(self, draft: OracleDraft, legal: Legal | None = None) -> None:
        self.draft, self.legal = draft, legal
        self.children: dict[tuple[int, TokenPath], list[tuple[float, int]]] = {}
        self.states: dict[tuple[int, TokenPath], Tensor] = {}

    def of(self, known: Sequence[int], paths: Sequence[TokenPath]) -> list[list[tuple[float, int]]]:
        """Children of `paths`, which have equal length, each behind its L of `known`."""
        wanted = [*zip(known, paths, strict=True)]
        missing = [one for one in dict.fromkeys(wanted) if one not in self.children]
        for start in range(0, len(missing), TOGETHER):
            self._work_out(missing[start : start + TOGETHER])
        return [self.children[one] for one in wanted]

    def _work_out(self, wanted: list[tuple[int, TokenPath]]) -> None:
        fed = [[self.states[known, path[:depth]] for depth in range(len(path))] for known, path in wanted]
        states, logits = self.draft.after([known for known, _ in wanted], [path for _, path in wanted], fed)
        if self.legal is not None:
            ids = [self.draft.to_target(index) for index in range(logits.shape[-1])]
            masks = torch.tensor(numpy.stack([self.legal(*one)[ids] for one in wanted]))
            # Nothing may follow the end of a grammar.
            logits = logits.masked_fill(~masks & masks.any(-1, keepdim=True), -math.inf)
        # Of equal shares the lower id is first.
        order = logits.topk(min(WIDEST, logits.shape[-1])).indices.sort(-1).values
        best, places = logits.softmax(-1).gather(-1, order).sort(dim=-1, descending=True, stable=True)
        found = zip(best.tolist(), order.gather(-1, places).tolist(), strict=True)
        for one, state, row in zip(wanted, states, found, strict=True):
            self.children[one] = [(share, self.draft.to_target(index)) for share, index in zip(*row, strict=True)]
            self.states[one] = state


def tree_paths(proposals: Proposals, rounds: Sequence[int], shape: Shape) -> list[set[TokenPath]]:
    """The token paths of the nodes of the rounds that start at some KV lengths, chosen among the candidates of all
    steps; ties go to the lower id."""
    steps, topk, width = shape
    pools: list[list[tuple[float, TokenPath]]] = [[] for _ in rounds]
    beams: list[list[tuple[float, TokenPath]]] = [[(1.0, ())] for _ in rounds]
    for _ in range(steps if topk > 1 else width - 1):
        asked = [(known, path) for known, beam in zip(rounds, beams, strict=True) for _, path in beam]
        children = iter(proposals.of(*zip(*asked, strict=True)))
        for place, beam in enumerate(beams):
            grown = [(score * share, (*path, token)) for score, path in beam for share, token in next(children)[:topk]]
            pools[place] += grown
            beams[place] = sorted(grown, key=lambda candidate: -candidate[0])[:topk]
    return [{path for _, path in sorted(pool, key=lambda candidate: -candidate[0])[: width - 1]} for pool in pools]


def accept_lengths(proposals: Proposals, tokens: list[int], prompt: int, emitted: int, shape: Shape) -> list[int]:
    """Tokens per round, bonus included, until `emitted` tokens follow the prompt (the prefill emits the first)."""
    rounds: list[int] = []
    known = prompt
    while known - prompt + 1 < emitted:
        rounds.append(len(accepted_paths(proposals, tokens, [known], shape)[0]) + 1)
        known += rounds[-1]
    return rounds


def accepted_paths(proposals: Proposals, tokens: list[int], rounds: Sequence[int], shape: Shape) -> list[TokenPath]:
    """The drafts accepted by each of the rounds that start at some KV lengths; none past the end of `tokens`."""
    found = []
    for known, tree in zip(rounds, tree_paths(proposals, rounds, shape), strict=True):
        path: TokenPath = ()
        while known + 1 + len(path) < len(tokens) and (longer := (*path, tokens[known + 1 + len(path)])) in tree:
            path = longer
        found.append(path)
    return found


def reach(proposals: Proposals, tokens: list[int], prompt: int) -> list[int]:
    """Correct consecutive drafts (at most DEEPEST) of a chain, for rounds that start after 0, 1, .. tokens of earlier
    rounds; a round of S steps accepts the minimum of that and S."""
    return [len(path) for path in accepted_paths(proposals, tokens, range(prompt, len(tokens) - DEEPEST), CHAIN)]


class Continuation(NamedTuple):
    """Greedy `tokens` by transformers up to EOS or LIMIT, their log-probabilities (nats), the indices of tokens that
    lead by less than CLOSE with their margins (nats), and the prompt with these and BEYOND more tokens."""

    tokens: list[int]
    logprobs: list[float]
    margins: list[tuple[int, float]]
    text: list[int]


def continuation(model: torch.nn.Module, prompt: list[int]) -> Continuation:
    """The continuation of a prompt."""
    tokens = list(prompt)
    shares: list[float] = []
    close: list[tuple[int, float]] = []
    past = None
    end = None
    fed = tokens
    while end is None or len(tokens) < end + BEYOND:
        made = model(input_ids=torch.tensor([fed]), past_key_values=past, use_cache=True)
        past = made.past_key_values
        scores = made.logits[0, -1].double().log_softmax(-1)
        fed = [int(scores.argmax())]
        best, second = scores.topk(2).values.tolist()
        if best - second < CLOSE:
            close.append((len(shares), round(best - second, DIGITS)))
        tokens += fed
        shares.append(round(best, DIGITS))
        if end is None and (fed[0] == EOS_ID or len(tokens) == len(prompt) + LIMIT):
            end = len(tokens)
    count = end - len(prompt)
    return Continuation(tokens[len(prompt) : end], shares[:count], [one for one in close if one[0] < count], tokens)


def covered_shapes(target: str) -> dict[str, list[Shape]]:
    """Algorithm to all (steps, topk, draft tokens) that configurations of a target resolve to."""
    found: dict[str, list[Shape]] = {}
    for algorithm, draft in DRAFTS[target].items():
        facts = model_facts(target, None if draft == target else draft)
        shapes: set[Shape] = set()
        for asked in ((s, k, n) for s in STEPS for k in TOPK for n in WIDTHS):
            values: dict[str, Any] = dict(zip(SHAPE, asked, strict=True))
            if algorithm == SINGLE:
                values["enable_multi_layer_eagle"] = False
            name = algorithm.partition(".")[0].upper()
            config = EngineConfig(target, name, None if draft == target else draft, **values)
            try:
                resolved = resolve(config, facts)
            except ConfigError:
                continue  # refused configurations have no rounds
            shape = (resolved.num_steps, resolved.topk, resolved.num_draft_tokens)
            if algorithm != SINGLE or is_layered("nextn", shape):
                shapes.add(shape)
        found[algorithm] = sorted(shapes)
    return found


@torch.inference_mode()
def account(target: str, questions: Sequence[str], shapes: dict[str, list[Shape]]) -> dict[str, Any]:
    """`continuations` [prompt][ids], their `logprobs` [prompt][nats], their `margins` [prompt][(index, nats)],
    `acceptance` {algorithm: {"steps/topk/draft_tokens": [prompt][round]}}, and `reach` {algorithm: [prompt][position]}
    of those in ADAPTING."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(CHECKPOINTS / target, dtype=torch.float32)
    model.train(False)
    tokenizer = Tokenizer.from_file(str(CHECKPOINTS / target / "tokenizer.json"))
    drafts = Drafts(target)
    made = list[Continuation]()
    acceptance: dict[str, dict[str, list[list[int]]]] = {
        algorithm: {"/".join(map(str, shape)): [] for shape in wanted} for algorithm, wanted in shapes.items()
    }
    reaches: dict[str, list[list[int]]] = {algorithm: [] for algorithm in shapes if algorithm in ADAPTING}
    for question in questions:
        prompt: list[int] = tokenizer.encode(prompt_of(question)).ids
        made.append(continuation(model, prompt))
        tokens = made[-1].text
        proposals: dict[tuple[str, int], Proposals] = {}
        for algorithm, wanted in shapes.items():
            for shape in {*wanted, CHAIN}:
                if key_of(algorithm, shape) not in proposals:
                    proposals[key_of(algorithm, shape)] = Proposals(drafts.of(algorithm, shape, tokens))
            for shape in wanted:
                known = proposals[key_of(algorithm, shape)]
                rounds = accept_lengths(known, tokens, len(prompt), len(made[-1].tokens), shape)
                acceptance[algorithm]["/".join(map(str, shape))].append(rounds)
            if algorithm in reaches:
                reaches[algorithm].append(reach(proposals[key_of(algorithm, CHAIN)], tokens, len(prompt)))
    return {
        "continuations": [one.tokens for one in made],
        "logprobs": [one.logprobs for one in made],
        "margins": [one.margins for one in made],
        "acceptance": acceptance,
        "reach": reaches,
    }


def questions() -> list[str]:
    """The first PROMPTS questions of the test split."""
    return [json.loads(line)["question"] for line in TEST.read_text(encoding="utf-8").splitlines()[:PROMPTS]]


def main(targets: Sequence[str]) -> None:
    """Write the oracle files, and the margins, of the named targets (default all). ConfigError if one accepts less than
    its figures."""
    torch.set_num_threads(1)
    for target in targets or DRAFTS:
        body = account(target, questions(), covered_shapes(target))
        absolute.write(target, body)
        known = json.loads(margins_file().read_text(encoding="utf-8")) | {target: body.pop("margins")}
        for path, content in ((margins_file(), known), (oracle_file(target), body)):
            path.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
