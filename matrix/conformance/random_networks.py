"""Random networks through this engine's own drafters: trees whose likely candidates no text has, and blocks of
shapes that no fixture has, are what the zoo's naive drafts say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isclose
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import torch
from torch import Tensor
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from specmatrix.engine.core.draft.algorithms import algorithm
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.models.config import read_model_config
from specmatrix.engine.models.dflash.model import DFlash, DFlash2, DSpark
from specmatrix.engine.spec.autoregressive import AutoregressiveDrafter
from specmatrix.engine.spec.dflash import BlockDrafter
from specmatrix.errors import ConfigError
from specmatrix.matrix.conformance.random_trees import SHAPES
from specmatrix.matrix.zoo.checkpoint import named, new_draft
from specmatrix.matrix.zoo.config_json import config_of
from specmatrix.matrix.zoo.oracle import Proposals, tree_paths
from specmatrix.matrix.zoo.registry import RECIPES

# States of a network, its vocabulary, trees of a check and their rows.
STATES, VOCABULARY, DRAFTED, ROWS = 997, 16, 2, 3
# How positions of blocks are scaled, each within a text; `type` is the older name of `rope_type`.
AT_MOST: Final = {"original_max_position_embeddings": 8}
SCALINGS: Final[tuple[dict[str, Any], ...]] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | AT_MOST,
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.5} | AT_MOST,
)
# A block's texts and width, and the zoo's drafts whose kinds it has.
TEXT, WIDTH, NEAR = 12, 4, 1e-3
KINDS: Final[dict[str, type[DFlash]]] = {
    "llama-mini-dflash": DFlash,
    "llama-mini-dflash2": DFlash2,
    "llama-mini-dspark-gated": DSpark,
    "llama-mini-dspark-rnn": DSpark,
}


class Growing:
    """A draft network without weights: its state follows from the state before it, and from the tokens and positions of
    the drafts that it attends to. table: logits float64 [states, vocabulary]."""

    kv, carry_width, vocab_size, fed, seen = None, 1, VOCABULARY, None, None

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def begin(self, at: int, seen: Tensor | None = None) -> None:
        """A step of the draft that begins; at 0 with nothing fed."""
        self.fed, self.seen = self.fed if at else None, seen

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor, attend: object) -> Tensor:
        """States [B, W, 1]."""
        fed = tokens + 5 * positions
        self.fed = fed if self.fed is None else torch.cat((self.fed, fed), 1)
        seen = torch.ones((), dtype=torch.bool) if self.seen is None else self.seen
        return (31 * hidden[..., 0] + (seen * self.fed[:, None]).sum(2) * 3 + fed).remainder(len(self.table))[..., None]

    def logits(self, out: Tensor) -> Tensor:
        """Of states [..., 1]."""
        return self.table[out[..., 0].long()]

    def to_target(self, ids: Tensor) -> Tensor:
        """Its vocabulary is the target's."""
        return ids

    def after(self, known: Sequence[int], paths: Sequence[tuple[int, ...]], states: object) -> tuple[Tensor, Tensor]:
        """As an oracle's draft: states and logits behind each path."""
        del states
        rows = []
        for start, path in zip(known, paths, strict=True):
            fed, state = [token + 5 * (start + depth) for depth, token in enumerate(path)], start
            for end, one in enumerate(fed, 1):
                state = (31 * state + 3 * sum(fed[:end]) + one) % len(self.table)
            rows.append(state)
        made = torch.tensor(rows, dtype=torch.float64)[:, None]
        return made, self.logits(made)


def first_wrong_tree(seed: int) -> str:
    """A sentence on the first tree or chain behind drafts of a random network whose nodes are not the likeliest ones;
    else "". Some networks are so sure that most candidates are less likely than any that a text shows."""
    random, noise = Random(seed), torch.Generator().manual_seed(seed)
    for number in range(DRAFTED):
        topk, steps, nodes = random.choice(SHAPES)
        table = torch.randn(STATES, VOCABULARY, generator=noise, dtype=torch.float64) * random.choice((2, 8, 16))
        network: Any = Growing(table)
        pool: Any = SimpleNamespace(data=table)
        drafter: Any = AutoregressiveDrafter(algorithm("EAGLE"), network, pool, steps, topk, nodes, (), VOCABULARY)
        drafter._draft_attention = lambda *_, network=network: network
        known = [random.randrange(STATES) for _ in range(ROWS)]
        start = torch.tensor(known)
        hidden = start.double()[:, None]
        probs, ids = drafter._top(network.logits(hidden[:, None]))
        state = {"hidden": hidden, "ids": ids[:, 0]} | ({} if probs is None else {"probs": probs[:, 0]})
        batch: Any = SimpleNamespace(start=start, root=start[:, None], rows=start, width=nodes, padded_kv_len=nodes)
        batch.grammar = batch.sampling = None
        batch.slots = start[:, None]
        tree = drafter.propose(batch, cast(Any, SimpleNamespace(state=lambda _, state=state: state)))
        due = tree_paths(Proposals(network), known, (steps, topk, nodes))
        for row, (tokens, parents) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
            paths = list[tuple[int, ...]]([()])
            for token, parent in zip(tokens[1:], parents[1:], strict=True):
                paths.append((*paths[parent], token))
            mine, best = (_shares(network, known[row], each) for each in (paths[1:], due[row]))
            if len(mine) != len(best) or not all(map(isclose, mine, best)):
                text = f"in random tree {number} of {seed} with {steps} steps, topk {topk} and {nodes} nodes, the"
                return f"{text} likelihoods of the nodes are {mine}, not {best}"
    return ""


def _shares(network: Growing, known: int, paths: Iterable[tuple[int, ...]]) -> list[float]:
    """How likely each path is, the likeliest first."""
    found = []
    for path in paths:
        _, logits = network.after([known] * len(path), [path[:end] for end in range(len(path))], None)
        found.append(float(logits.softmax(-1)[range(len(path)), path].prod()))
    return sorted(found, reverse=True)


@torch.inference_mode()
def first_wrong_block(seed: int) -> str:
    """A sentence on the first draft of blocks with random weights, numbers of heads, layers and mask token, and each
    scaling of positions, that the zoo's network of these would not choose, or that is refused; else ""."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random, made = Random(seed), f"the random block {seed}"
        try:
            return next(filter(None, (_wrong_block(random, made, scaling) for scaling in SCALINGS)), "")
        except ConfigError as error:
            return f"the config.json of {error}"


def scaled_rotation(random: Random, scaling: dict[str, Any] | None = None) -> dict[str, Any]:
    """A config.json's fields of rotations with a scaling of SCALINGS, by default any, in one of their spellings."""
    row, theta = dict(scaling or random.choice(SCALINGS)), {"rope_theta": random.choice((10.0, 100.0))}
    if random.choice((True, False)):
        return {"rope_parameters": theta | row}
    kind = random.choice(("rope_type", "type"))
    return theta | {"rope_scaling": {kind: row.pop("rope_type"), **row}}


def _wrong_block(random: Random, name: str, scaling: dict[str, Any]) -> str:
    kv_heads, layers, recipe = random.choice((1, 2, 3)), random.choice((1, 2)), RECIPES[random.choice([*KINDS])]
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8, "vocab_size": VOCABULARY}
    shape |= {"num_attention_heads": kv_heads * random.choice((1, 2)), "num_key_value_heads": kv_heads}
    shape |= {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers, "max_window_layers": layers}
    rotation = scaled_rotation(random, scaling)
    whole = rotation.get("rope_parameters") or {"rope_theta": rotation["rope_theta"], **scaling}
    rotary = Qwen3RotaryEmbedding(Qwen3Config(head_dim=8, max_position_embeddings=32, rope_parameters=whole))
    shape |= rotation
    recipe = replace(recipe, config=recipe.config | shape, mask_id=random.randrange(VOCABULARY))
    embedding, head = torch.randn(2, VOCABULARY, 32).unbind()
    parts: Any = SimpleNamespace(lm_head=SimpleNamespace(weight=head))
    parts.model = SimpleNamespace(embed_tokens=SimpleNamespace(weight=embedding))
    net: Any = new_draft(recipe, parts).eval()
    net.shape.rotary = lambda at: tuple(one.view(*at.shape, -1) for one in rotary(embedding, at.view(1, -1)))
    for weight in net.parameters():
        weight.add_(torch.randn_like(weight) * 0.3)
    target: Any = SimpleNamespace(dtype=torch.float32, hidden_size=32, num_layers=4, deterministic=True, positions=64)
    target.device, target.embedding, target.head = torch.device("cpu"), embedding, head.T.contiguous()
    config = read_model_config(config_of(recipe, RECIPES["llama-mini"]), Path(name))
    model = KINDS[recipe.name](config, named(net), target)
    pool = KVPool(model.kv, 1, 1 + ROWS * TEXT, torch.float32, "cpu", spare=ROWS * (WIDTH + 1))
    drafter = BlockDrafter(algorithm("DFLASH"), model, pool, WIDTH)
    slots = 1 + torch.arange(ROWS * TEXT).view(ROWS, TEXT)
    known = torch.tensor([random.randrange(1, TEXT - WIDTH) for _ in slots])
    tokens, aux = torch.randint(VOCABULARY, (ROWS, TEXT)), torch.randn(ROWS, TEXT, 32 * len(recipe.aux_layers))
    rows = torch.arange(ROWS)
    drafter._keep(StepBatch(rows, known * 0, tokens[:, :1], TEXT, TEXT, slots, None), aux)
    batch = StepBatch(rows, known, tokens.gather(1, known[:, None]), WIDTH, TEXT, slots, None)
    found = drafter.propose(batch, cast(Any, None)).tokens
    hidden = net.rows(tokens, aux, known[:, None], WIDTH)
    for column in range(1, WIDTH):
        logits = net.corrected(hidden[:, 0, :column], found[:, :column])[:, -1]
        behind = logits.amax(1) - logits.gather(1, found[:, column : column + 1])[:, 0]
        if behind.max() > NEAR:
            text = f"{kv_heads} KV heads, {config.num_heads} heads, {layers} layers, mask token {recipe.mask_id}"
            text += f" and {config.rope.kind} rotation"
            return (
                f"draft {column} of {name} as of {recipe.name} with {text} is {behind.max():.2g} nats behind the best"
            )
    return ""
