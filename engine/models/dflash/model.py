"""DFLASH (arXiv 2602.06036): one forward over a block of mask tokens drafts all of them at once.

DFLASH2: DFLASH's block with convolutions along it, and a selector that scores each draft with the one before it.

DSPARK (arXiv 2607.05147): DFLASH's block, whose drafts a Markov head chooses from left to right, and a head that
says how likely each one is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.causal_lm import CausalLM, head_logits
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.dflash.convolution import ConvolvedLayer
from specmatrix.engine.models.draft_config import MarkovConfig
from specmatrix.engine.models.layers import Attend, DecoderLayer, Norm, Workspaces
from specmatrix.engine.models.rope import pair_up, rotations
from specmatrix.engine.models.tied_weights import captured_states
from specmatrix.engine.models.weights import WeightReader
from specmatrix.errors import ConfigError


class BlockHead(Protocol):
    """Chooses a block's drafts from left to right: each one's logits depend on the draft before it."""

    def begin(self, logits: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        """The head's state before the first of D drafts, from the block's logits [B, D, V] and hidden [B, D, H]."""
        ...

    def step(self, state: tuple[Tensor, ...], column: int, previous: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits float32 [B, V] of draft `column`, -inf for tokens that it cannot be, after the token `previous` [B],
        and the next state. Torch operations without host synchronisation, as a CUDA graph captures them."""
        ...


class DFlash:
    """A DFlashDraftModel in z-lab's checkpoint layout: Qwen3 layers, `fc`, `hidden_norm`, `norm`.

    Embedding and head are the target's. A committed position's keys and values are projections of the target's states
    there (`context`), without a forward. aux_layers: the states that the target must capture for it. block_head: None
    if each draft is chosen on its own.
    """

    layer_kind: type[DecoderLayer] = DecoderLayer
    block_head: BlockHead | None = None
    first = 1  # the row of a block that predicts its first draft

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], target: CausalLM) -> None:
        self.config, self.device, self.dtype = config, target.device, target.dtype
        self.kv = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim)
        self.aux_layers = captured_states(config, target)
        assert config.mask_token is not None
        self.mask_token = config.mask_token
        hidden, d = config.hidden_size, config.head_dim
        own = {key.removeprefix("model."): w for key, w in weights.items()}
        take = WeightReader(dict(own), config.architecture)
        self.norm = Norm(hidden, config.norm_eps, self.dtype, self.device, target.deterministic)
        self.fuse = self.norm.stored(take("fc.weight", hidden, len(self.aux_layers) * target.hidden_size))
        self.context_norm = self.norm.scale(take("hidden_norm.weight", hidden))
        self.layers = [self.layer_kind(take, f"layers.{i}", config, self.norm) for i in range(config.num_layers)]
        self.final_norm = self.norm.scale(take("norm.weight", hidden))
        take.done()
        # For all layers: all key heads, then all value heads. Not folded with a front norm, unlike the layers.
        attention = [f"layers.{i}.self_attn." for i in range(config.num_layers)]
        keys = [pair_up(own[f"{prefix}k_proj.weight"], d) for prefix in attention]
        self.context_kv = self.norm.stored(torch.cat((*keys, *(own[f"{prefix}v_proj.weight"] for prefix in attention))))
        self.head_norm = Norm(d, config.norm_eps, self.dtype, self.device)
        key_norms = torch.stack([pair_up(own[f"{prefix}k_norm.weight"][:, None], d)[:, 0] for prefix in attention])
        self.key_norm = self.head_norm.scale(key_norms.repeat_interleave(config.num_kv_heads, 0))
        self.embedding, self.head = target.embedding, self.norm.own.hold(target.head)
        self.rotations = rotations(config.rope, d, target.positions, self.device)
        self.workspaces = Workspaces(config, self.dtype, self.device)

    def context(self, states: Tensor, positions: Tensor) -> Tensor:
        """Target states [B, W, len(aux_layers) * Ht] at positions int64 [B, W] -> the KV to store for them:
        [layers, B * W, 2 * kv_heads * head_dim], each row key heads, then value heads."""
        c = self.config
        rows = positions.numel()
        x = states.reshape(rows, states.shape[2])
        linear = self.norm.products.linear
        kv = linear(self.norm.whole(linear(x, self.fuse), self.context_norm), self.context_kv)
        heads = c.num_layers * c.num_kv_heads
        keys = kv[:, : heads * c.head_dim].view(rows, heads, c.head_dim)
        self.head_norm.each(keys, self.key_norm)
        rotation = self.rotations.index_select(0, positions.reshape(rows))[:, None]
        rotated = torch.view_as_complex(keys.float().view(rows, heads, -1, 2)) * rotation
        keys.copy_(torch.view_as_real(rotated).flatten(2))
        return kv.view(rows, 2, c.num_layers, -1).permute(2, 0, 1, 3).reshape(c.num_layers, rows, -1)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """A block, its known first token and mask tokens: int64 [B, W] -> hidden [B, W, H] after the final norm."""
        batch, width = tokens.shape
        rows = batch * width
        x = self.embedding.index_select(0, tokens.reshape(rows))
        rotation = self.rotations.index_select(0, positions.reshape(rows))[:, None]
        workspace = self.workspaces.of(batch, width)
        for i, layer in enumerate(self.layers):
            layer(x, rotation, attend, i, workspace)
        return self.norm.whole(x, self.final_norm).view(batch, width, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] -> float32 [..., V] of the token at each row's own position."""
        return head_logits(hidden, self.head, self.norm.own)

    def confidences(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """The probability [B, D] that each draft is right if those before it are, from hidden [B, D, H] and the tokens
        [B, D] before the drafts; None if only the draft's logits say."""
        del hidden, previous
        return None


PREFIX = "candidate_selector."


class DFlash2(DFlash):
    """A DFlash2DraftModel in z-lab's checkpoint layout."""

    layer_kind = ConvolvedLayer

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], target: CausalLM) -> None:
        named = {key.removeprefix("model."): w for key, w in weights.items()}
        own = {key: w for key, w in named.items() if key.startswith(PREFIX)}
        super().__init__(config, {key: w for key, w in named.items() if key not in own}, target)
        self.block_head = CandidateSelector(config, own, self.norm)


class CandidateSelector:
    """score(c) = logit(c) + sum(A[p] * (P h) * B[c]) for the K likeliest tokens c of a row with hidden h, after the
    token p: a draft depends on the one before it, which is chosen first (no search over paths)."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor], norm: Norm) -> None:
        assert config.draft is not None and config.draft.dflash2 is not None
        take, rank = WeightReader(weights, config.architecture), config.draft.dflash2.rank
        self.candidates, self.products = config.draft.dflash2.candidates, norm.own
        self.predecessors = take(f"{PREFIX}predecessor_codebook", config.vocab_size, rank)
        self.successors = take(f"{PREFIX}successor_codebook", config.vocab_size, rank)
        self.projection = norm.stored(take(f"{PREFIX}hidden_projection.weight", rank, config.hidden_size))
        take.done()
        # A product, as the order of its sums does not depend on the number of rows.
        self.total = norm.stored(self.successors.new_ones(1, rank))

    def begin(self, logits: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        unary, ids = logits.topk(self.candidates)
        code = self.products.linear(hidden.flatten(0, 1), self.projection).view(*hidden.shape[:2], -1)
        return unary, ids, code, torch.full_like(logits[:, 0], -torch.inf)

    def step(self, state: tuple[Tensor, ...], column: int, previous: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        unary, ids, code, nothing = state
        left = self.predecessors.index_select(0, previous) * code[:, column]
        pairs = head_logits(left[:, None] * self.successors[ids[:, column]], self.total, self.products)[..., 0]
        return nothing.scatter(1, ids[:, column], unary[:, column] + pairs), state


HEADS = ("markov_head.", "confidence_head.")
# Copies of the target's tensors in some checkpoints, which SGLang skips too.
SHARED = ("embed_tokens.", "lm_head.", "rotary_emb.")


class DSpark(DFlash):
    """A DSparkDraftModel in SGLang's checkpoint layout."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], target: CausalLM) -> None:
        assert config.draft is not None and config.draft.markov is not None
        named = {key.removeprefix("model."): w for key, w in weights.items()}
        own = {key: w for key, w in named.items() if key.startswith(HEADS)}
        super().__init__(config, {k: w for k, w in named.items() if not k.startswith(HEADS + SHARED)}, target)
        self.first = int(not config.draft.from_anchor)
        self.block_head = MarkovHead(config.draft.markov, config, own, self.norm)

    def confidences(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """As DFlash's: by the confidence head."""
        assert isinstance(self.block_head, MarkovHead)
        return self.block_head.confidences(hidden, previous)

    def calibrate(self, temperatures: Tensor) -> None:
        """Divide the logits of the confidences by temperatures float32 [drafts]. ConfigError for another number."""
        assert self.config.draft is not None and isinstance(self.block_head, MarkovHead)
        drafts = (self.config.draft.block_size or 1) - 1
        if len(temperatures) != drafts:
            raise ConfigError(
                f"speculative_dspark_confidence_sts_path has {len(temperatures)} temperatures, but the draft's block "
                f"has {drafts} drafts; it needs one for each"
            )
        self.block_head.temperatures = temperatures.to(self.device)


class MarkovHead:
    """logits_i + W2 code_i, with e_i = W1[draft i - 1] and by kind: code = e; sigmoid(G [h; e]) * e; or of a state s
    that starts at 0, (g, c, o) = J [s; e; h], s <- sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c), code = tanh(o).

    temperatures float32 [D]: calibration of each draft's confidence; None: 1.
    """

    temperatures: Tensor | None = None

    def __init__(self, markov: MarkovConfig, config: ModelConfig, weights: dict[str, Tensor], norm: Norm) -> None:
        take, rank, wide = WeightReader(weights, config.architecture), markov.rank, config.hidden_size + markov.rank
        self.kind, self.seeing, self.norm, self.rank = markov.kind, markov.seeing, norm, rank
        self.embedding = take("markov_head.markov_w1.weight", config.vocab_size, rank)
        self.out = norm.stored(take("markov_head.markov_w2.weight", config.vocab_size, rank))
        if markov.kind != "vanilla":
            name, out, width = (
                ("gate_proj", rank, wide) if markov.kind == "gated" else ("joint_proj", 3 * rank, wide + rank)
            )
            self.gate = norm.stored(take(f"markov_head.{name}.weight", out, width))
            self.gate_bias = take(f"markov_head.{name}.bias", out)
        self.confident = markov.confident
        if markov.confident:
            width = wide if markov.seeing else config.hidden_size
            self.confidence = norm.stored(take("confidence_head.proj.weight", 1, width))
            self.confidence_bias = take("confidence_head.proj.bias", 1)
        take.done()

    def begin(self, logits: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        return logits, hidden, hidden.new_zeros(len(hidden), self.rank)

    def step(self, state: tuple[Tensor, ...], column: int, previous: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        logits, hidden, carried = state
        code, row, sigmoid = self.embedding.index_select(0, previous), hidden[:, column], self.norm.sigmoid
        if self.kind == "gated":
            code = sigmoid(self._gates(row, code)) * code
        if self.kind == "rnn":
            keep, new, out = self._gates(carried, code, row).chunk(3, -1)
            keep = sigmoid(keep)
            carried = keep * carried + (1 - keep) * self._tanh(new)
            code = self._tanh(out)
        return logits[:, column] + head_logits(code, self.out, self.norm.own), (logits, hidden, carried)

    def confidences(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """The probability float32 [B, D] that each draft is right if those before it are, from hidden [B, D, H] and the
        tokens [B, D] before the drafts; None without a confidence head."""
        if not self.confident:
            return None
        features = torch.cat((hidden, self.embedding[previous]), -1) if self.seeing else hidden
        raw = self.norm.own.linear(features.flatten(0, 1), self.confidence) + self.confidence_bias
        raw = raw.float().view(previous.shape)
        return self.norm.sigmoid(raw if self.temperatures is None else raw / self.temperatures[: raw.shape[1]])

    def _gates(self, *parts: Tensor) -> Tensor:
        return self.norm.own.linear(torch.cat(parts, -1), self.gate) + self.gate_bias

    def _tanh(self, x: Tensor) -> Tensor:
        # By the sigmoid, whose bits do not depend on the position.
        return 2 * self.norm.sigmoid(2 * x) - 1
