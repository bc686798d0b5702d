"""The contract of every drafter, on the zoo's models: shapes of trees, positions of forwards, and what is proposed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.device.attention import DraftAttention
from specmatrix.engine.device.batch import StepBatch, prefix_bias
from specmatrix.engine.spec.drafter import DraftTree, shift_left

PROMPTS = (
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
)
# (algorithm, steps, topk, nodes); no two sizes of a line are equal where that can hide a stride.
SHAPES = [
    ("NONE", 0, 0, 1),
    ("STANDALONE", 1, 1, 2),
    ("STANDALONE", 5, 1, 6),
    ("STANDALONE", 3, 2, 5),
    ("STANDALONE", 2, 3, 13),
    ("EAGLE3", 1, 3, 3),
    ("EAGLE3", 4, 1, 5),
    ("EAGLE3", 4, 2, 7),
    ("EAGLE3", 3, 4, 21),
    ("EAGLE", 4, 1, 5),
    ("EAGLE", 3, 3, 8),
    ("NEXTN", 4, 1, 5),
    ("NEXTN", 3, 2, 6),
]
# The target and the draft of each algorithm; None: the draft comes with the target.
MODELS: dict[str, tuple[str, str | None]] = {
    "STANDALONE": ("llama-mini", "llama-mini-standalone"),
    "EAGLE": ("llama-mini", "llama-mini-eagle"),
    "EAGLE3": ("llama-mini", "llama-mini-eagle3"),
    "NEXTN": ("deepseek-mini", None),
}
SAMPLED = SamplingParams(max_new_tokens=14, temperature=0.9, seed=3, ignore_eos=True)


@dataclass
class RoundCall:
    """One proposal with its batch, and the draft model's calls since the previous one."""

    batch: StepBatch
    tree: DraftTree


@dataclass
class Call:
    """One forward of the draft model."""

    drafting: bool  # over the committed prefix and scratch, not a write of draft KV
    tokens: Tensor
    positions: Tensor


@dataclass
class Watch:
    """Wraps a drafter and its model, forwards every call and records it."""

    inner: Any
    rounds: list[RoundCall] = field(default_factory=list)
    events: list[Call | RoundCall] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def propose(self, batch, relay):
        self.states.append(relay.state(batch.rows))
        self.rounds.append(RoundCall(batch, self.inner.propose(batch, relay)))
        self.events.append(self.rounds[-1])
        return self.rounds[-1].tree


@dataclass
class WatchedModel:
    inner: Any
    events: list[Call | RoundCall]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def forward(self, tokens, positions, hidden, attend):
        self.events.append(Call(hasattr(attend, "begin"), tokens.clone(), positions.clone()))
        return self.inner.forward(tokens, positions, hidden, attend)


def start_engine(zoo, algorithm="NONE", steps=0, topk=0, nodes=1, model="llama-mini", **more: object) -> LLM:
    """An engine on zoo models. Without a drafter the sizes stay automatic."""
    sizes: dict[str, Any] = {}
    if algorithm != "NONE":
        model, draft = MODELS[algorithm]
        sizes = {
            "speculative_draft_model_path": None if draft is None else str(zoo(draft)),
            "speculative_num_steps": steps,
            "speculative_eagle_topk": topk,
            "speculative_num_draft_tokens": nodes,
        }
    config = EngineConfig(
        str(zoo(model)), speculative_algorithm=algorithm, context_length=256, max_total_tokens=1024, **sizes, **more
    )
    return LLM(config)


def watched(zoo, *shape: object, **more: object) -> tuple[LLM, Watch]:
    llm = start_engine(zoo, *shape, **more)
    watch = Watch(llm.loop.executor.drafter)
    if hasattr(watch.inner, "model"):
        watch.inner.model = WatchedModel(watch.inner.model, watch.events)
    executor = llm.loop.executor
    (executor.guard or executor.plain).drafter = watch
    return llm, watch


@pytest.mark.parametrize("shape", SHAPES[1:], ids=lambda s: "-".join(map(str, s)))
def test_draft_forwards_stand_at_the_positions_of_their_tokens(zoo, shape):
    """The first draft step is at position L, the length of the target's KV (sglang#25015)."""
    _, steps, topk, _ = shape
    llm, watch = watched(zoo, *shape, spec_version="v1")
    prompt = llm.tokenizer.encode(PROMPTS[0])
    rid = llm.add(prompt, SAMPLED)
    while llm.step():
        pass
    tokens = [*prompt, *llm.request(rid).output]
    prime, *rest = watch.events
    assert not prime.drafting and prime.positions.tolist() == [list(range(len(prompt)))]
    assert prime.tokens.tolist() == [tokens[1 : len(prompt) + 1]], "draft KV slot p holds token p + 1"
    for round_, events in rounds_with_calls(rest, steps - 1):
        length = int(round_.batch.start)
        assert round_.tree.tokens[0, 0] == tokens[length]
        drafts, extend = events
        assert [call.positions.tolist() for call in drafts] == [[[length + i] * topk] for i in range(steps - 1)]
        assert extend.positions.tolist() == [list(range(length, length + extend.tokens.shape[1]))]
        # What is absorbed begins with the tokens that follow the root, up to the last that was shown.
        shown = tokens[length + 1 :]
        following = next((int(r.batch.start) for r in watch.rounds if int(r.batch.start) > length), None)
        kept = len(shown) if following is None else following - length
        assert extend.tokens[0, :kept].tolist()[: len(shown)] == shown[:kept]


@pytest.mark.parametrize("algorithm", list(MODELS))
def test_a_chain_fills_whatever_width_a_round_has(zoo, algorithm):
    """The steps of a round may change from round to round (sglang#24055); a narrower round drafts the same start."""
    llm, watch = watched(zoo, algorithm, 4, 1, 5, spec_version="v1")
    llm.add(PROMPTS[0], SAMPLED)
    relay = llm.loop.executor.relay
    while llm.step() and len(watch.rounds) < 3:
        pass
    batch, tree = watch.rounds[-1].batch, watch.rounds[-1].tree
    with torch.inference_mode():
        relay.stash(batch.rows, watch.states[-1])
        for width in (4, 2, 1):
            fewer = replace(batch, width=width, padded_kv_len=batch.padded_kv_len - 5 + width)
            narrow = watch.inner.propose(fewer, relay)
            assert torch.equal(narrow.tokens, tree.tokens[:, :width])
            assert narrow.depth == width - 1 and narrow.ancestors is None


def rounds_with_calls(events, drafts):
    """Events come as the draft calls of a round, the round, and the write of what was accepted."""
    size = drafts + 2
    assert len(events) % size == 0
    for i in range(0, len(events), size):
        *calls, round_, extend = events[i : i + size]
        assert isinstance(round_, RoundCall) and isinstance(extend, Call) and not extend.drafting
        assert all(isinstance(call, Call) and call.drafting for call in calls)
        yield round_, (calls, extend)


@pytest.mark.parametrize("chunk", [-1, 7])
@pytest.mark.parametrize("page_size", [1, 5])
def test_a_standalone_chain_is_the_drafts_own_greedy_text(zoo, page_size, chunk):
    """The draft model as a separate engine, on the tokens after the first, must generate the same."""
    llm, watch = watched(zoo, "STANDALONE", 5, 1, 6, spec_version="v1", page_size=page_size, chunked_prefill_size=chunk)
    alone = start_engine(zoo, model="llama-mini-standalone", disable_radix_cache=True)
    rid = llm.add(PROMPTS[1], SAMPLED)
    while llm.step():
        pass
    request = llm.request(rid)
    greedy = SamplingParams(max_new_tokens=5, ignore_eos=True)
    for round_ in watch.rounds:
        known = request.tokens[1 : int(round_.batch.start) + 1]
        (said,) = alone.generate([known], greedy)
        assert tuple(round_.tree.tokens[0, 1:].tolist()) == said.output_ids


@dataclass
class PathByPath(Watch):
    """Compares every proposal with the same search whose paths are drafted separately, as chains from the relay's
    state."""

    expected: list[set[tuple[int, ...]]] = field(default_factory=list)

    def propose(self, batch, relay):
        drafter = self.inner
        state = relay.state(batch.rows)
        first = zip(state["ids"][0].tolist(), state["probs"][0].tolist(), strict=True)
        candidates = beams = [((token,), score) for token, score in first]
        for _ in range(drafter.steps - 1):
            grown = [child for path, score in beams for child in self.children(batch, state, path, score)]
            candidates = candidates + grown
            beams = sorted(grown, key=lambda c: -c[1])[: drafter.topk]
        self.expected.append({p for p, _ in sorted(candidates, key=lambda c: -c[1])[: drafter.nodes - 1]})
        return super().propose(batch, relay)

    def children(self, batch, state, path, score):
        drafter, padded_kv_len = self.inner, batch.padded_kv_len - batch.width
        bias = prefix_bias(batch.start, padded_kv_len, drafter.pool.data.dtype)
        attend = DraftAttention(drafter.pool, batch.slots[:, :padded_kv_len], bias, len(path))
        hidden = state["hidden"][:, None] if "hidden" in state else None
        for i, token in enumerate(path):
            attend.begin(i)
            hidden = drafter.model.forward(torch.tensor([[token]]), (batch.start + i)[:, None], hidden, attend)
        probs, ids = torch.softmax(drafter.model.logits(hidden)[0, 0], -1).topk(drafter.topk)
        pairs = zip(drafter.model.to_target(ids).tolist(), probs.tolist(), strict=True)
        return [((*path, token), score * p) for token, p in pairs]


@pytest.mark.parametrize(
    "shape", [("EAGLE3", 4, 3, 14), ("STANDALONE", 4, 2, 11), ("NEXTN", 3, 3, 9)], ids=lambda s: s[0]
)
def test_a_tree_is_the_best_of_all_paths_drafted_one_by_one(zoo, shape):
    """Each beam continues from its own parent's state, token and scratch."""
    llm = start_engine(zoo, *shape, spec_version="v1", page_size=3)
    watch = PathByPath(llm.loop.executor.drafter)
    executor = llm.loop.executor
    (executor.guard or executor.plain).drafter = watch
    hot = SamplingParams(max_new_tokens=20, temperature=1.5, seed=5, ignore_eos=True)
    for prompt in PROMPTS:
        llm.generate([prompt], hot)
    assert len(watch.rounds) > 5
    for round_, best in zip(watch.rounds, watch.expected, strict=True):
        drafted: list[tuple[int, ...]] = []
        for parent, token in zip(round_.tree.parents[0].tolist(), round_.tree.tokens[0].tolist(), strict=True):
            drafted.append(() if parent < 0 else (*drafted[parent], token))
        assert set(drafted[1:]) == best


@pytest.mark.parametrize("algorithm", list(MODELS))
def test_a_chunk_ends_with_the_next_prompt_token_and_only_the_last_with_a_sampled_one(zoo, algorithm):
    """sglang#26329: the sampled token at the end of a chunk breaks the draft's KV there."""
    llm, watch = watched(zoo, algorithm, 3, 2, 6, chunked_prefill_size=7)
    prompt = [0, *range(100, 130)]  # no text that the target would continue like this
    rid = llm.add(prompt, SAMPLED)
    while llm.step():
        pass
    known = [*prompt, llm.request(rid).output[0]]
    chunks = [call for call in watch.events[: -(-len(prompt) // 7)] if isinstance(call, Call)]
    assert [c.positions[0, 0].item() for c in chunks] == list(range(0, len(prompt), 7))
    written = [token for c in chunks for token in c.tokens[0].tolist()]
    assert written == known[1:]


def test_a_prompt_chunk_is_followed_by_its_next_token_or_the_sampled_one():
    tokens = torch.tensor([[5, 6, 7], [8, 9, 0]])
    # The first chunk goes on with token 0, the second ends its prompt after two tokens.
    found = shift_left(tokens, torch.tensor([3, 2]), torch.tensor([3, 4]), torch.tensor([0, -1]))
    assert found[0].tolist() == [6, 7, 0] and found[1, :2].tolist() == [9, 4]
