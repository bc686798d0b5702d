"""EAGLE (arXiv 2401.15077) and EAGLE-2: a layer over the target's last hidden state drafts its next hidden state.

EAGLE-3 (arXiv 2503.01840): a few decoder layers over the target's captured states draft the next token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.causal_lm import CausalLM, head_logits
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.layers import Attend, DecoderLayer, Masks, Norm, Workspaces
from specmatrix.engine.models.rope import rotations
from specmatrix.engine.models.tied_weights import captured_states, shared_embedding, shared_head
from specmatrix.engine.models.weights import WeightReader
from specmatrix.errors import ConfigError


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


MASK_HIDDEN: Final = "mask_hidden"


class Eagle3:
    """A LlamaForCausalLMEagle3 in the checkpoint layout of SGLang and vLLM (`midlayer.*`, `layers.*`, `fc`, `d2t`).

    aux_layers: what the target must capture for it. carry_width: width of the state carried between draft steps.
    vocab_size is the draft's own; `to_target` maps its ids. Embeddings and head are the target's if the checkpoint has
    none. `fc` fuses states that are not as wide as the draft; states of its width are used unchanged, as in SGLang.
    With `norm_before_residual` the first layer adds to the normalised states (vLLM's speculators).
    masks: of a draft that predicts all steps in one forward (P-EAGLE, arXiv 2602.01469), the mask token and
    `mask_hidden` [len(aux_layers) * Ht], which takes the place of captured states; None for others.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], target: CausalLM) -> None:
        self.config, self.device, self.dtype = config, target.device, target.dtype
        self.kv = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim)
        self.carry_width = hidden = config.hidden_size
        self.aux_layers = captured_states(config, target)
        self.state_width = len(self.aux_layers) * target.hidden_size
        # SGLang's tensor names: no `model.` prefix, and `midlayer` where vLLM's exports say `layers.0`.
        named = {_name(key): tensor for key, tensor in weights.items()}
        marks = named.pop("t2d", None)
        if config.mask_token is not None and MASK_HIDDEN in named:  # with or without axes of size 1, as in vLLM
            named[MASK_HIDDEN] = named[MASK_HIDDEN].reshape(-1)
        take = WeightReader(named, config.architecture)
        self.norm = Norm(hidden, config.norm_eps, self.dtype, self.device, target.deterministic)
        self.masks: Masks | None = None
        if config.mask_token is not None:
            self.masks = config.mask_token, take(MASK_HIDDEN, self.state_width)
        assert config.draft is not None
        self.vocab_size = config.draft.vocab_size
        self.fuse = None
        if self.state_width != hidden:
            self.fuse = self.norm.stored(take("fc.weight", hidden, self.state_width))
        self.first = DecoderLayer(take, "midlayer", config, self.norm, "hidden_norm", paired=True)
        self.stream_norm = None
        if config.draft.normed and self.first.input_norm is not None:
            self.stream_norm = self.norm.scale(self.first.input_norm)
        self.deeper = [DecoderLayer(take, f"layers.{i}", config, self.norm) for i in range(1, config.num_layers)]
        self.final_norm = take("norm.weight", hidden)
        head = shared_head(take, config, self.vocab_size, target)
        self.head = self.norm.stored(self.norm.fold(head, self.final_norm))
        # A token's normalised embedding never changes, so the table stores it.
        embedding_norm = self.norm.scale(take("midlayer.input_layernorm.weight", hidden))
        self.embedding = self.norm.whole(shared_embedding(take, config, target), embedding_norm)
        self.id_map = self._id_map(take, target.vocab_size)
        if marks is not None and marks.nonzero().flatten().tolist() != sorted(self.id_map.tolist()):
            raise ConfigError(f"{config.architecture}: t2d marks other target ids than d2t maps to")
        take.done()
        self.rotations = rotations(config.rope, config.head_dim, target.positions, self.device)
        self.workspaces = Workspaces(config, self.dtype, self.device)

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor, attend: Attend) -> Tensor:
        """tokens and positions int64 [B, W] (target ids) -> the residual stream before the final norm [B, W, Hd].

        hidden: captured target states [B, W, len(aux_layers) * Ht], or the stream carried from an earlier call
        [B, W, Hd], which already has the draft's width and skips the fusing projection.
        """
        batch, width = tokens.shape
        rows = batch * width
        state = hidden.reshape(rows, hidden.shape[2])
        fuse = self.fuse if state.shape[1] == self.state_width else None
        x = state.clone() if fuse is None else self.norm.products.linear(state, fuse)
        word = self.embedding.index_select(0, tokens.reshape(rows))
        normed = self.first.front(x)
        if self.stream_norm is not None:
            x = self.norm.whole(x, self.stream_norm)
        pair = torch.cat((word, normed), 1)
        rotation = self.rotations.index_select(0, positions.reshape(rows))[:, None]
        workspace = self.workspaces.of(batch, width)
        self.first.attention(x, pair, rotation, attend, 0, workspace)
        self.first.feed_forward(x, workspace)
        for i, layer in enumerate(self.deeper, 1):
            layer(x, rotation, attend, i, workspace)
        return x.view(batch, width, self.carry_width)

    def logits(self, out: Tensor) -> Tensor:
        """out [..., Hd] as `forward` returned it -> float32 [..., draft vocabulary]."""
        return head_logits(self.norm(out, self.final_norm), self.head, self.norm.own)

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids as target ids, of any shape."""
        return self.id_map.index_select(0, ids.reshape(-1)).view(ids.shape)

    def _id_map(self, take: WeightReader, target_vocab: int) -> Tensor:
        """int64 [draft vocabulary]: target id of each draft id. d2t stores differences (target - draft)."""
        own = torch.arange(self.vocab_size, device=self.device)
        if "d2t" not in take:
            if self.vocab_size != target_vocab:
                raise ConfigError(
                    f"{self.config.architecture}: d2t is missing, but {self.vocab_size} draft ids are not the "
                    f"target's {target_vocab}"
                )
            return own
        ids = own + take.ids("d2t", self.vocab_size)
        if int(ids.min()) < 0 or int(ids.max()) >= target_vocab or len(set(ids.tolist())) != len(ids):
            raise ConfigError(
                f"{self.config.architecture}: d2t must map draft ids to distinct target ids below {target_vocab}, "
                f"but its ids range from {int(ids.min())} to {int(ids.max())}"
            )
        return ids


def _name(key: str) -> str:
    key = key.removeprefix("model.")
    return "midlayer." + key.removeprefix("layers.0.") if key.startswith("layers.0.") else key
