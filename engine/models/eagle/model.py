"""EAGLE (arXiv 2401.15077) and EAGLE-2: a layer over the target's last hidden state drafts its next hidden state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.causal_lm import CausalLM, head_logits
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.layers import Attend, DecoderLayer, Masks, Norm
from specmatrix.engine.models.rope import rotations
from specmatrix.engine.models.tied_weights import captured_states, shared_embedding
from specmatrix.engine.models.weights import WeightReader
from specmatrix.engine.models.workspace import Workspaces


class Eagle:
    """A LlamaForCausalLMEagle in the checkpoint layout of SafeAILab's EAGLE (`fc`, `layers.*`, no final norm).

    Its output approximates the target's hidden state after the final norm, so the target's head applies directly.
    aux_layers: what the target must capture for it. carry_width: width of the state carried between draft steps.
    masks: none, as it predicts one token per forward.
    """

    masks: Masks | None = None

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], target: CausalLM) -> None:
        self.config, self.device, self.dtype = config, target.device, target.dtype
        self.kv = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim)
        self.vocab_size = target.vocab_size
        self.carry_width = hidden = config.hidden_size
        self.aux_layers = captured_states(config, target)
        take = WeightReader({key.removeprefix("model."): w for key, w in weights.items()}, config.architecture)
        self.norm = norm = Norm(hidden, config.norm_eps, self.dtype, self.device, target.deterministic)
        self.embedding = shared_embedding(take, config, target)
        self.fuse = norm.stored(take("fc.weight", hidden, 2 * hidden))
        self.fuse_bias = take("fc.bias", hidden) if "fc.bias" in take else None
        front = {0: None}  # The first layer has none.
        self.layers = [
            DecoderLayer(take, f"layers.{i}", config, norm, front=front.get(i, "input_layernorm"))
            for i in range(config.num_layers)
        ]
        self.head = norm.own.hold(target.head)
        take.drop("lm_head.weight")
        take.done()
        self.rotations = rotations(config.rope, config.head_dim, target.positions, self.device)
        self.workspaces = Workspaces(config, self.dtype, self.device)

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor, attend: Attend) -> Tensor:
        """tokens and positions int64 [B, W] -> the drafted states [B, W, H].

        hidden [B, W, H]: the target's states after its final norm, or what an earlier call returned.
        """
        batch, width = tokens.shape
        rows = batch * width
        word = self.embedding.index_select(0, tokens.reshape(rows))
        pair = torch.cat((word, hidden.reshape(rows, self.carry_width)), 1)
        x = self.norm.products.linear(pair, self.fuse)
        if self.fuse_bias is not None:
            x += self.fuse_bias
        rotation = self.rotations.index_select(0, positions.reshape(rows))[:, None]
        workspace = self.workspaces.of(batch, width)
        for i, layer in enumerate(self.layers):
            layer(x, rotation, attend, i, workspace)
        return x.view(batch, width, self.carry_width)

    def logits(self, out: Tensor) -> Tensor:
        """out [..., H] as `forward` returned it -> float32 [..., V]."""
        return head_logits(out, self.head, self.norm.own)

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids as target ids: the vocabulary is the target's."""
        return ids
