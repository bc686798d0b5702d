"""EAGLE-3 (arXiv 2503.01840): one decoder layer over the target's captured states drafts the next token."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.core.errors import ConfigError
from engine.device.pool import KVLayout
from engine.models.config import ModelConfig
from engine.models.layers import Attend, Layer, Norm, linear, stored, twin_rows
from engine.models.llama import POSITION_MARGIN, head_logits
from engine.models.rope import rotations
from engine.models.target import Target
from engine.models.weights import Take
from engine.models.workspace import Workspaces


class Eagle3:
    """A LlamaForCausalLMEagle3 in the checkpoint layout of SGLang and vLLM (`midlayer.*`, `fc`, `d2t`).

    aux_layers: what the target must capture for it. carry_width: width of the state carried between draft steps.
    vocab_size is the draft's own; `to_target` maps its ids. Embeddings are the target's where the checkpoint has none.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], target: Target, deterministic: bool = True
    ) -> None:
        self.config, self.device, self.dtype = config, target.device, target.dtype
        self.deterministic = deterministic
        self.kv = KVLayout(1, config.num_kv_heads, config.head_dim)
        self.carry_width = hidden = config.hidden_size
        self.aux_layers = _aux_layers(config, target)
        self.state_width = len(self.aux_layers) * target.hidden_size
        take = Take(_canonical(weights), config.architecture)
        self.norm = Norm(hidden, config.norm_eps, self.dtype, self.device)
        self.vocab_size = config.draft_vocab_size or config.vocab_size
        self.fuse = stored(take("fc.weight", hidden, self.state_width))
        self.layer = Layer(take, "midlayer", config, self.norm, paired=True)
        self.final_norm = take("norm.weight", hidden)
        self.head = stored(self.norm.fold(self._head(take, target), self.final_norm))
        # A token's normed embedding never changes, so the table holds it.
        embedding_norm = self.norm.scale(take("midlayer.input_layernorm.weight", hidden))
        self.embedding = self.norm.whole(self._embedding(take, target), embedding_norm)
        self.id_map = self._id_map(take, target.vocab_size)
        take.drop("t2d")
        take.done()
        length = max(config.context_length, target.config.context_length) + POSITION_MARGIN
        self.rotations = rotations(config.rope, config.head_dim, length, self.device)
        self.workspaces = Workspaces(config, self.dtype, self.device, double_lone=deterministic)

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor, attend: Attend) -> Tensor:
        """tokens and positions int64 [B, W] (target ids) -> the residual stream before the final norm [B, W, Hd].

        hidden: captured target states [B, W, len(aux_layers) * Ht], or a stream carried from an earlier call
        [B, W, Hd], which has draft width already and skips the fusing projection.
        """
        batch, width = tokens.shape
        rows = batch * width
        state = hidden.reshape(rows, hidden.shape[2])
        lone = rows == 1 and self.deterministic
        if lone:
            state = twin_rows(state)
        x = linear(state, self.fuse) if state.shape[1] == self.state_width else state.clone()
        word = self.embedding.index_select(0, tokens.reshape(rows))
        normed = self.norm(x, self.layer.input_norm)
        pair = torch.cat((twin_rows(word) if lone else word, normed), 1)
        turn = self.rotations.index_select(0, positions.reshape(rows))[:, None]
        space = self.workspaces.of(batch, width)
        self.layer.attention(x, pair, turn, attend, 0, space)
        self.layer.feed_forward(x, space)
        return x[:rows].view(batch, width, self.carry_width)

    def logits(self, out: Tensor) -> Tensor:
        """out [..., Hd] as `forward` returned it -> float32 [..., draft vocabulary]."""
        return head_logits(self.norm(out, self.final_norm), self.head, self.deterministic)

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids as target ids, of any shape."""
        return self.id_map.index_select(0, ids.reshape(-1)).view(ids.shape)

    def _head(self, take: Take, target: Target) -> Tensor:
        """[draft vocabulary, Hd]; the target's head where the checkpoint has none."""
        if "lm_head.weight" in take:
            return take("lm_head.weight", self.vocab_size, self.carry_width)
        head = target.head.t()
        if head.shape != (self.vocab_size, self.carry_width):
            raise ConfigError(
                f"{self.config.architecture}: lm_head.weight is missing, and the target's has shape "
                f"{tuple(head.shape)}, not {(self.vocab_size, self.carry_width)}"
            )
        return head

    def _embedding(self, take: Take, target: Target) -> Tensor:
        """[target vocabulary, Hd]; the target's where the checkpoint has none."""
        if "embed_tokens.weight" in take:
            return take("embed_tokens.weight", self.config.vocab_size, self.carry_width)
        if target.hidden_size != self.carry_width:
            raise ConfigError(
                f"{self.config.architecture}: embed_tokens.weight is missing, and the target's is "
                f"{target.hidden_size} wide, not {self.carry_width}"
            )
        return target.embedding

    def _id_map(self, take: Take, target_vocab: int) -> Tensor:
        """int64 [draft vocabulary]: target id of each draft id. d2t stores differences (target - draft)."""
        own = torch.arange(self.vocab_size, device=self.device)
        if "d2t" not in take:
            if self.vocab_size != target_vocab:
                raise ConfigError(
                    f"{self.config.architecture}: d2t is missing, but {self.vocab_size} draft ids are not the "
                    f"target's {target_vocab}"
                )
            return own
        ids = own + take("d2t", self.vocab_size).to(torch.int64)
        if int(ids.min()) < 0 or int(ids.max()) >= target_vocab or len(set(ids.tolist())) != len(ids):
            raise ConfigError(
                f"{self.config.architecture}: d2t must map draft ids to distinct target ids below {target_vocab}, "
                f"it reaches from {int(ids.min())} to {int(ids.max())}"
            )
        return ids


def _aux_layers(config: ModelConfig, target: Target) -> tuple[int, ...]:
    layers = config.aux_layers_of(target.num_layers)
    if not all(0 <= layer <= target.num_layers for layer in layers):
        raise ConfigError(
            f"{config.architecture}: aux layers {list(layers)} must lie in 0..{target.num_layers} for a target of "
            f"{target.num_layers} layers"
        )
    if config.target_hidden_size != target.hidden_size:
        raise ConfigError(
            f"{config.architecture}: target_hidden_size {config.target_hidden_size} differs from the target's "
            f"{target.hidden_size}"
        )
    return layers


def _canonical(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as SGLang writes them: no `model.` in front, and `midlayer` where vLLM's exports say `layers.0`."""
    return {_name(key): tensor for key, tensor in weights.items()}


def _name(key: str) -> str:
    key = key.removeprefix("model.")
    return "midlayer." + key.removeprefix("layers.0.") if key.startswith("layers.0.") else key
