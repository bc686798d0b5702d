"""DFLASH (arXiv 2602.06036): one forward over a block of mask tokens drafts all of them at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.causal_lm import CausalLM, head_logits
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.layers import Attend, DecoderLayer, Norm
from specmatrix.engine.models.rope import pair_up, rotations
from specmatrix.engine.models.tied_weights import captured_states
from specmatrix.engine.models.weights import WeightReader
from specmatrix.engine.models.workspace import Workspaces


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
