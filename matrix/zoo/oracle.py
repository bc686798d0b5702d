"""An independent, naive account of greedy speculative decoding: what every gate on acceptance can be held against.

The target is transformers' own; drafts run without KV cache, pages, masks or batching of requests, from the whole
sequence each time. No code is shared with the engine. `python -m matrix.zoo.oracle` writes data/oracle.json.

With tokens t_0..t_L known and L of them in the target's KV, a draft has consumed the pairs (t_{p+1}, f_p), p < L, where
f_p is the target's state at p. Slot L-1 proposes t_{L+1}; a proposal is fed at position L with the draft's own state.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from matrix.zoo import checkpoint
from matrix.zoo.eagle_net import EagleNet
from matrix.zoo.gsm_mini import prompt_of
from matrix.zoo.net import LlamaNet, rope_table
from matrix.zoo.recipes import RECIPES
from matrix.zoo.registry import CHECKPOINTS, HERE, TEST
from matrix.zoo.tokenizer import EOS_ID

ORACLE_FILE: Final = HERE / "data" / "oracle.json"
PROMPTS: Final = 32
LIMIT: Final = 96
# Tokens past the end of a continuation, so that the last round's drafts have something to be compared with.
BEYOND: Final = 16
WIDEST: Final = 8

TokenPath = tuple[int, ...]
Shape = tuple[int, int, int]  # steps, topk, draft tokens


class Draft(Protocol):
    """Answers for one sequence: the state and the logits after the pairs of slots 0..L-1 and the drafts of a path."""

    def after(
        self, known: int, paths: Sequence[TokenPath], states: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Last state [n, H] and logits [n, Vd] for L = `known` and n equally long paths; states [H] fed on each."""
        ...

    def to_target(self, index: int) -> int:
        """The target's id of a draft id."""
        ...


class StandaloneDraft:
    """A small Llama that is fed t_1, t_2, .. at positions 0, 1, ..: t_0 is never seen."""

    def __init__(self, net: LlamaNet, tokens: list[int]) -> None:
        self.net = net
        self.tokens = tokens

    def after(
        self, known: int, paths: Sequence[TokenPath], states: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        del states
        rows = torch.tensor([[*self.tokens[1 : known + 1], *path] for path in paths])
        logits = self.net(rows)[0][:, -1]
        return torch.zeros(len(paths), 0), logits

    def to_target(self, index: int) -> int:
        return index


class EagleDraft:
    """The EAGLE3 head over the target's auxiliary states [T, A]."""

    def __init__(self, net: EagleNet, kept: Tensor, tokens: list[int], aux: Tensor) -> None:
        self.net = net
        self.kept = kept.tolist()
        self.tokens = tokens
        self.features = net.fc(aux)

    def after(
        self, known: int, paths: Sequence[TokenPath], states: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        rows = torch.tensor([[*self.tokens[1 : known + 1], *path] for path in paths])
        hidden = torch.stack([torch.stack((*self.features[:known], *own)) for own in states])
        layer = self.net.midlayer
        table = rope_table(self.net.shape, torch.arange(rows.shape[1]))
        joined = torch.cat((layer.input_layernorm(self.net.embed_tokens(rows)), layer.hidden_norm(hidden)), -1)
        q, k, v = layer.self_attn.project(joined, table)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out = hidden + layer.self_attn.merge(mixed)
        out = (out + layer.mlp(layer.post_attention_layernorm(out)))[:, -1]
        return out, self.net.lm_head(self.net.norm(out))

    def to_target(self, index: int) -> int:
        return int(self.kept[index])


class Proposals:
    """The best WIDEST children (probability, target id) of every path that is asked for, each worked out once."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.children: dict[tuple[int, TokenPath], list[tuple[float, int]]] = {}
        self.states: dict[tuple[int, TokenPath], Tensor] = {}

    def of(self, known: int, paths: Sequence[TokenPath]) -> list[list[tuple[float, int]]]:
        """Children of `paths`, all of one length, for L = `known`."""
        missing = [path for path in dict.fromkeys(paths) if (known, path) not in self.children]
        if missing:
            self._work_out(known, missing)
        return [self.children[known, path] for path in paths]

    def _work_out(self, known: int, paths: list[TokenPath]) -> None:
        fed = [[self.states[known, path[:depth]] for depth in range(len(path))] for path in paths]
        states, logits = self.draft.after(known, paths, fed)
        best, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
        for row, path in enumerate(paths):
            pairs = zip(best[row, :WIDEST].tolist(), order[row, :WIDEST].tolist(), strict=True)
            self.children[known, path] = [(share, self.draft.to_target(index)) for share, index in pairs]
            self.states[known, path] = states[row]


def tree_paths(proposals: Proposals, known: int, shape: Shape) -> set[TokenPath]:
    """The token paths of a round's verified nodes: all candidates of all steps compete, ties go to the lower id."""
    steps, topk, width = shape
    if topk == 1:
        path: TokenPath = ()
        for _ in range(steps):
            path = (*path, proposals.of(known, [path])[0][0][1])
        return {path[:depth] for depth in range(1, width)}
    pool: list[tuple[float, TokenPath]] = []
    beams: list[tuple[float, TokenPath]] = [(1.0, ())]
    for _ in range(steps):
        children = proposals.of(known, [path for _, path in beams])
        grown = [
            (score * share, (*path, token))
            for (score, path), found in zip(beams, children, strict=True)
            for share, token in found[:topk]
        ]
        pool += grown
        beams = sorted(grown, key=lambda candidate: -candidate[0])[:topk]
    return {path for _, path in sorted(pool, key=lambda candidate: -candidate[0])[: width - 1]}


def accept_lengths(proposals: Proposals, tokens: list[int], prompt: int, emitted: int, shape: Shape) -> list[int]:
    """Tokens of each round, bonus included, until `emitted` tokens after the prompt are out (the prefill emits one)."""
    rounds: list[int] = []
    known = prompt
    while known - prompt + 1 < emitted:
        tree = tree_paths(proposals, known, shape)
        path: TokenPath = ()
        while (longer := (*path, tokens[known + 1 + len(path)])) in tree:
            path = longer
        rounds.append(len(path) + 1)
        known += len(path) + 1
    return rounds


def continuation(model: torch.nn.Module, prompt: list[int]) -> tuple[list[int], list[int]]:
    """Greedy tokens to EOS or LIMIT by transformers, and the same tokens with BEYOND more, whatever they are."""
    tokens = list(prompt)
    past = None
    end = None
    fed = tokens
    while end is None or len(tokens) < end + BEYOND:
        made = model(input_ids=torch.tensor([fed]), past_key_values=past, use_cache=True)
        past = made.past_key_values
        fed = [int(made.logits[0, -1].argmax())]
        tokens += fed
        if end is None and (fed[0] == EOS_ID or len(tokens) == len(prompt) + LIMIT):
            end = len(tokens)
    return tokens[len(prompt) : end], tokens


def locked_shapes() -> dict[str, list[Shape]]:
    """Algorithm to the resolved (steps, topk, draft tokens) of the cells in the lock file."""
    from engine.core.errors import ConfigError
    from engine.core.resolve import resolve
    from matrix.lockfile import STAGES, stage_cells
    from matrix.zoo_facts import zoo_facts

    found: dict[str, set[Shape]] = {"standalone": set(), "eagle3": set()}
    for cell in stage_cells(STAGES[-1]):
        if cell.algorithm not in found:
            continue
        try:
            resolved = resolve(cell.config(), zoo_facts(cell.algorithm))
        except ConfigError:
            continue  # a cell that must be refused has nothing to accept
        found[cell.algorithm].add((resolved.num_steps, resolved.topk, resolved.num_draft_tokens))
    return {algorithm: sorted(shapes) for algorithm, shapes in found.items()}


def _drafts(tokens: list[int]) -> dict[str, Draft]:
    cpu = torch.device("cpu")
    target_recipe, small, head = RECIPES["llama-mini"], RECIPES["llama-mini-standalone"], RECIPES["llama-mini-eagle3"]
    target = checkpoint.read_llama(CHECKPOINTS / target_recipe.name, target_recipe, cpu)
    aux = target(torch.tensor([tokens]), aux=head.aux_layers)[1]
    assert aux is not None
    net, kept = checkpoint.read_eagle(CHECKPOINTS / head.name, head, aux.shape[-1], cpu)
    return {
        "standalone": StandaloneDraft(checkpoint.read_llama(CHECKPOINTS / small.name, small, cpu), tokens),
        "eagle3": EagleDraft(net, kept, tokens, aux[0]),
    }


@torch.inference_mode()
def account(questions: Sequence[str], shapes: dict[str, list[Shape]]) -> dict[str, object]:
    """`continuations` [prompt][ids], and `acceptance` {algorithm: {"steps/topk/draft_tokens": [prompt][round]}}."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(CHECKPOINTS / "llama-mini", dtype=torch.float32)
    model.train(False)
    tokenizer = Tokenizer.from_file(str(CHECKPOINTS / "llama-mini" / "tokenizer.json"))
    continuations: list[list[int]] = []
    acceptance: dict[str, dict[str, list[list[int]]]] = {
        algorithm: {"/".join(map(str, shape)): [] for shape in wanted} for algorithm, wanted in shapes.items()
    }
    for question in questions:
        prompt: list[int] = tokenizer.encode(prompt_of(question)).ids
        made, tokens = continuation(model, prompt)
        continuations.append(made)
        for algorithm, draft in _drafts(tokens).items():
            proposals = Proposals(draft)
            for shape in shapes.get(algorithm, []):
                rounds = accept_lengths(proposals, tokens, len(prompt), len(made), shape)
                acceptance[algorithm]["/".join(map(str, shape))].append(rounds)
    return {"continuations": continuations, "acceptance": acceptance}


def main(out: Path = ORACLE_FILE) -> None:
    """Write the oracle for the first PROMPTS test questions and every shape of the lock file."""
    torch.set_num_threads(1)
    questions = [json.loads(line)["question"] for line in TEST.read_text(encoding="utf-8").splitlines()[:PROMPTS]]
    out.write_text(json.dumps(account(questions, locked_shapes()), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
