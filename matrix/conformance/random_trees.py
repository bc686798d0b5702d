"""Random texts and trees through this engine's own matcher of grammars, index of n-grams and suffix trees: what no
workload meets must be what their oracles say. Random batches through its logit rules: a request's are those that it has
alone."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import asdict, replace
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from specmatrix.engine.core.draft.ngram_index import NgramDraft, NgramIndex, NgramOptions
from specmatrix.engine.core.draft.suffix_automaton import SuffixAutomaton
from specmatrix.engine.core.draft.suffix_tree import SuffixCache, SuffixOptions, Text
from specmatrix.engine.core.memory.groups import SlidingWindow
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.admission import Admission
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.step import PlanRow
from specmatrix.matrix.oracles.grammar import compiled, following
from specmatrix.matrix.oracles.ngram import Forgetful, Grams, Suffixes
from specmatrix.matrix.workloads.finish import text_of
from specmatrix.matrix.workloads.request import RequestSpec

if TYPE_CHECKING:
    from torch import Generator, Tensor

NODES: Final = 8
TREES, LIKELY = 4, 0.8  # rounds of a request, and how often a draft is legal
SHAPES: Final = ((1, 7, 8), (2, 3, 6), (3, 2, 9), (4, 5, 12))  # topk, steps and nodes
TEXTS, TOKENS, GROWTHS = 4, 5, 60
# Random batches, their requests, tokens of a vocabulary, and those that a request has at most.
MIXES, ROWS, VOCABULARY, KNOWN = 4, 5, 16, 12
FEW: Final = SuffixOptions(6, 2, 2.0, 0.5, 0.25)


def first_wrong_mask(request: RequestSpec, seed: int, eos: frozenset[int]) -> str:
    """A sentence on the first node of random trees behind random legal texts whose mask is not what a fresh matcher
    allows there; else "". Rows behind a refused draft or the grammar's end are free. eos: the target's."""
    import torch

    from specmatrix.engine.device.grammar_masks import GrammarMasks, RequestMatcher

    assert request.grammar is not None
    random, output = Random(seed), tuple(request.reasoning_end_ids)
    grammar = compiled(eos, *request.grammar)
    matcher = RequestMatcher(grammar, SamplingParams(1, reasoning_end_ids=request.reasoning_end_ids), output)
    size = len(following(request, output, eos))
    unused: Any = None
    masks = GrammarMasks({}, (1, size), Counters(), unused, torch.device("cpu"))
    for number in range(TREES):
        paths, parents = [output], [-1]
        for node in range(1, NODES):
            parents.append(random.randrange(node))
            paths.append((*paths[parents[-1]], _next(random, request, paths[parents[-1]], eos, size)))
        words = torch.full((NODES, -(-size // 32)), -1, dtype=torch.int32)
        masks.walk(matcher, [(0, *path)[-1] for path in paths], parents, words)
        bits = (words[..., None] >> torch.arange(32) & 1).flatten(1)[:, :size].bool().numpy()
        for node, path in enumerate(paths):
            due = following(request, path, eos)
            if (bits[node] != (due if due.any() else True))[1:].any():  # the first one is special
                text = f"in random tree {number} behind {text_of(output)!r}, the mask of node {node} allows "
                return f"{text}{bits[node].sum()} tokens behind {text_of(path)!r}, its grammar {due.sum()}"
        for _ in range(random.randrange(4)):
            token = _next(random, request, output, eos, size)
            if token not in eos and matcher.push(token):
                output = (*output, token)
    return ""


def _next(random: Random, request: RequestSpec, path: tuple[int, ...], eos: frozenset[int], size: int) -> int:
    """A token, likely a legal one, an end where one is."""
    legal = following(request, path, eos).nonzero()[0].tolist()
    ends = [token for token in legal if token in eos]
    if not legal or random.random() > LIKELY:
        return random.randrange(size)
    return random.choice(ends if ends and random.random() < 0.5 else legal)


def first_wrong_draft(match_type: Literal["BFS", "PROB"], seed: int) -> str:
    """A sentence on the first tree that the index drafts behind growing random texts, or the first draft of a random
    corpus, that its oracle does not have; else "". Some indices are small, so that old tokens are forgotten; some texts
    repeat themselves."""
    random = Random(seed)
    share, options = 1.0, NgramOptions(1, 4, match_type, max_trie_depth=6)
    if seed % 2:
        share, options = random.choice((0.1, 1.0)), replace(options, capacity=random.randrange(20, 60))
    index, oracle = NgramIndex(options), Forgetful(Grams(asdict(options)))
    texts, cursors = [list[int]() for _ in range(TEXTS)], [Text() for _ in range(TEXTS)]
    for number in range(GROWTHS):
        place, (topk, steps, nodes) = random.randrange(TEXTS), random.choice(SHAPES)
        text = texts[place]
        added = [random.randrange(TOKENS) if random.random() < share else 0 for _ in range(random.randrange(1, 4))]
        text += added
        index.learn(cursors[place], text)
        for token in added:
            oracle.show(place, chr(token))
        draft = NgramDraft()
        index.extend(draft, cursors[place], nodes, topk, steps)
        draft.pad(nodes, topk, steps)
        paths = [""]
        for node in range(1, len(draft)):
            paths.append(paths[draft.parents[node]] + chr(draft.tokens[node]))
        due = oracle.grams.draft(oracle.left.get(place, ""), nodes, topk, steps)
        if due != set(paths) or oracle.grams.windows != index.tree.windows:
            found = sorted([*map(ord, path)] for path in due ^ set(paths))[:1]
            return f"in growth {number} of the random texts {seed}, the path {found} is in one of draft and oracle only"
    corpus = [random.choices(range(3), k=random.randrange(1, 16)) for _ in range(TEXTS)]
    automaton, known, state, line = SuffixAutomaton(corpus), Grams({}, [*map(_letters, corpus)]), 0, ""
    for _ in range(GROWTHS):
        line += chr(token := random.randrange(TOKENS))
        state = automaton.step(state, token)
        if (drafted := _letters(automaton.follow(state, TEXTS))) != (next_ones := known.from_corpus(line, TEXTS)):
            return f"behind {line!r} the corpus {corpus} of the random texts {seed} has {next_ones!r}, not {drafted!r}"
    return ""


def first_wrong_suffix(seed: int) -> str:
    """A sentence on the first draft or order of the suffix trees behind growing random texts, of which old ones give
    way, that their oracle does not have; else ""."""
    random, texts = Random(seed), dict[int, list[int]]()
    cache, oracle = SuffixCache(FEW, TEXTS - 1), Suffixes(asdict(FEW), TEXTS - 1)
    for number in range(2 * GROWTHS):
        if len(texts) == TEXTS:
            del texts[ended := random.choice([*texts])]
            if oracle.own.pop(ended, None):
                cache.forget(ended)
        text = texts.setdefault(key := random.choice([number, *texts]), [0, 1])
        text += [random.randrange(TOKENS - 1) for _ in range(random.randrange(1, 6))]
        room = random.choice((0, 1, 3, 24))
        pairs: list[tuple[str, Sequence[int], Sequence[str]]] = [
            ("the draft", cache.draft(key, text, 2, room), oracle.draft(key, _letters(text), 2, room))
        ]
        for window, after in oracle.shared.followers.items():
            if window and len(after) > 1 and (place := cache.tree.find(array("i", map(ord, window)))):
                pairs.append((f"behind {[*map(ord, window)]}", [one for one, *_ in cache.tree.children(*place)], after))
        for what, found, due in pairs:
            if _letters(found) != "".join(due):
                return f"in growth {number} of the random texts {seed}, {what} is {[*found]}, not {[*map(ord, due)]}"
    return ""


def first_wrong_room(seed: int) -> str:
    """A sentence on the first random request that admission lets into too few pages of sliding-window layers, or keeps
    out of enough; else "". Its pages are counted at every number of committed positions."""
    random = Random(seed)
    for number in range(GROWTHS):
        page, tokens, margin = random.choice((1, 4, 16)), random.randrange(1, 40), random.randrange(24)
        width, steps, chunk = random.randrange(1, 9), random.randrange(1, 4), random.choice((None, 7, 32))
        prompt, more = (random.randrange(1, 60) for _ in range(2))
        end = prompt + more + steps * width
        ahead = steps * max(width, chunk or end)  # positions of the steps in flight
        spans = ((max(0, done - margin - tokens + 1), min(done + ahead, end)) for done in range(end + 1))
        most = max(-(-last // page) - first // page for first, last in spans)
        admission = cast(Any, Admission)(*[None] * 6, width, steps * width, chunk, end)
        request = cast(Any, SimpleNamespace(prompt=[0] * prompt, params=SamplingParams(more)))
        room = admission._budget(SlidingWindow(most, page, tokens, margin), request, end)
        if not most <= room <= most + 1 + (page == 1):
            return f"the random request {number} of {seed} is admitted into {room} window pages; it needs {most}"
    return ""


def first_mixed_rule(seed: int) -> str:
    """A sentence on the first random batch in which a request's logits under its rules and min_p, at a node of a chain,
    are others beside requests with other rules and temperatures than alone; else ""."""
    import torch

    random, noise = Random(seed), torch.Generator().manual_seed(seed)
    said = (f"in random batch {number} of {seed}, {_mixed(random, noise)}" for number in range(MIXES))
    return next((text for text in said if not text.endswith(", ")), "")


def _mixed(random: Random, noise: Generator) -> str:
    import torch

    from specmatrix.engine.device.logit_rules import LogitRules, NodeContext, without_unlikely

    asked, order = [_rules(random) for _ in range(ROWS)], torch.arange(NODES)
    texts = [[random.randrange(VOCABULARY) for _ in range(random.randrange(1, KNOWN))] for _ in asked]
    known = [(random.randint(1, len(text)), tuple(text)) for text in texts]
    rows = [PlanRow(i, i, i, 1, 1, 0, admit=(asked[i], 0, KNOWN), arrived=known[i]) for i in range(ROWS)]
    rules = LogitRules(VOCABULARY, frozenset({1}), ROWS, KNOWN + NODES, torch.device("cpu"))
    rules.admit(rows)
    tokens = torch.tensor([[text[-1], *random.choices(range(VOCABULARY), k=NODES - 1)] for text in texts])
    start, heat = torch.tensor([len(one) - 1 for one in texts]), torch.tensor([one.temperature for one in asked])
    logits = 3 * torch.randn(ROWS, NODES, VOCABULARY, generator=noise)

    def under(chosen: list[int]) -> Tensor:
        chain = (order - 1).expand(len(chosen), -1), order.expand(len(chosen), -1)
        at = NodeContext(start[chosen], KNOWN + NODES, tokens[chosen], *chain, None)
        made = rules.of([rows[i] for i in chosen])
        found = rules.adjusted(logits[chosen], torch.tensor(chosen), made, at)
        return found if made.min_p is None else without_unlikely(found, heat[chosen], made.min_p)

    together = under([*range(ROWS)])
    wrong = next((i for i in range(ROWS) if not torch.equal(together[i], under([i])[0])), None)
    if wrong is None:
        return ""
    one = asked[wrong]
    return f"a request at temperature {one.temperature} with min_p {one.min_p} has other logits than alone"


def _rules(random: Random) -> SamplingParams:
    return SamplingParams(
        temperature=random.choice((0.0, 0.5, 1.0, 3.0)),
        min_p=random.choice((0.0, 0.1, 0.5)),
        repetition_penalty=random.choice((0.7, 1.0, 1.4)),
        frequency_penalty=random.choice((0.0, 0.7)),
        presence_penalty=random.choice((0.0, -0.9)),
        logit_bias=random.choice((None, {3: 2.5, 7: -100.0}, {9: 1.0})),
        bad_words_ids=random.choice(((), ((2,), (3, 4)), ((1, 2, 3),))),
        allowed_token_ids=random.choice((None, None, [1, 4, 5, 9])),
        min_new_tokens=random.choice((0, 6)),
    )


def _letters(text: Sequence[int]) -> str:
    return "".join(map(chr, text))
