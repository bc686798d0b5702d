"""The structure shared by all targets: embedding, decoder layers, final norm, head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.device.pool import RECURRENT, KVLayout, StateLayout
from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.layers import Attend, DecoderLayer, Norm
from specmatrix.engine.models.linear_ops import FAST, LinearOps
from specmatrix.engine.models.rope import rotations
from specmatrix.engine.models.tensor_parallel import ShardedWeightReader, Vocabulary, share
from specmatrix.engine.models.weights import WeightReader


class CausalLM(ABC):
    """A language model of shape `config`, loaded on `device`; a subclass defines its layers.

    deterministic: a token's result is bitwise independent of the number of tokens in the call; raises ConfigError if
    this machine has no matrix product that guarantees it. positions: how many to prepare, by default the checkpoint's
    context length; drafts need some past its end. ranks: the ranks that share it; `share` is the shape of this rank's
    part, and `weights` may then be on another device. `weights` is empty afterwards.
    kv: the layout of its pool. state: that of the recurrent layers' states, None without such layers.
    """

    kv: KVLayout
    state: StateLayout | None = None

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
        deterministic: bool = True,
        positions: int | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self.share = config, share(config, ranks.size)
        self.device, self.dtype, self.deterministic = device, dtype, deterministic
        self.num_layers = config.num_layers
        self.hidden_size, self.vocab_size = config.hidden_size, config.vocab_size
        take = ShardedWeightReader(weights, config.architecture, config, ranks, device)
        self.norm = Norm(config.hidden_size, config.norm_eps, dtype, device, deterministic, ranks)
        embedding = take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self.layers = [self.layer(take, f"model.layers.{i}", i) for i in range(config.num_layers)]
        self.final_norm = self.norm.scale(take("model.norm.weight", config.hidden_size))
        head = embedding
        if not config.tie_embeddings or "lm_head.weight" in take:
            own = take("lm_head.weight", config.vocab_size, config.hidden_size)
            # As in transformers: tie_word_embeddings is ignored if the checkpoint has a different head.
            head = embedding if torch.equal(own, embedding) else own
        self.vocabulary = Vocabulary(embedding, head, ranks)
        self.norm.own.hold(self.vocabulary.own_head)
        for prefix in config.bundled_prefixes:
            take.leave(prefix)
        take.done()
        self.positions = config.context_length if positions is None else positions
        self.rotations = rotations(config.rope, config.rotary_dim, self.positions, device)
        self.prepare()

    @property
    def embedding(self) -> Tensor:
        """The whole embedding table [V, H], for a draft that shares it."""
        return self.vocabulary.embedding

    @property
    def head(self) -> Tensor:
        """The whole head [H, V], for a draft that shares it."""
        return self.vocabulary.head

    @property
    def row_form(self) -> str | None:
        """The names of the matrix-product forms that preserve a row's bits on a CPU; None if bits may change."""
        rows = self.norm.own.rows
        if rows is None or self.device.type != "cpu":
            return None
        compiled = any(isinstance(layer, DecoderLayer) and layer.compiled is not None for layer in self.layers)
        return " and ".join(filter(None, ("compiled" * compiled, rows.names)))

    @abstractmethod
    def prepare(self) -> None:
        """Set `kv` and everything that `workspace` returns; called last by the constructor."""

    @abstractmethod
    def layer(self, take: WeightReader, prefix: str, index: int) -> Callable[..., None]:
        """Decoder layer `index`, from the tensors under `prefix`: layer(x, rotation, attend, index, workspace)."""

    @abstractmethod
    def workspace(self, batch: int, width: int) -> object:
        """The buffers that the layers share in one forward of B requests by W tokens."""

    def forward(
        self, tokens: Tensor, positions: Tensor, attend: Attend, capture: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """tokens and positions int64 [B, W] -> hidden [B, W, H] after the final norm, and the captured states.

        capture: for each i the residual stream at the input of layer i (num_layers: the output of the last; FINAL: the
        hidden state after the final norm), concatenated in that order [B, W, len(capture) * H]; None if nothing is
        captured.
        """
        batch, width = tokens.shape
        rows, hidden = batch * width, self.hidden_size
        workspace = self.workspace(batch, width)
        x = self.vocabulary.words(tokens.reshape(rows))
        rotation = self.rotations.index_select(0, positions.reshape(rows))[:, None]
        states = x.new_empty(batch, width, len(capture) * hidden) if capture else None
        for i, layer in enumerate(self.layers):
            if states is not None:
                self._keep(x, i, capture, states)
            layer(x, rotation, attend, i, workspace)
        final = self.norm.whole(x, self.final_norm)
        if states is not None:
            self._keep(x, self.num_layers, capture, states)
            self._keep(final, FINAL, capture, states)
        return final.view(batch, width, hidden), states

    def _keep(self, x: Tensor, layer: int, capture: tuple[int, ...], states: Tensor) -> None:
        """Copy x into each column block of `states` that captures `layer`."""
        hidden = self.hidden_size
        for slot, wanted in enumerate(capture):
            if wanted == layer:
                batch, width, _ = states.shape
                states[..., slot * hidden : (slot + 1) * hidden] = x.view(batch, width, hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] -> float32 [..., V]."""
        return self.vocabulary.joined(head_logits(hidden, self.vocabulary.own_head, self.norm.own))

    def window_of(self, layer: int) -> int | None:
        """A layer's sliding window in tokens, the query's own included; None without one, RECURRENT for a state."""
        if self.config.delta is not None and self.config.delta.layers[layer]:
            return RECURRENT
        return self.config.windows[layer] if self.config.windows else None


def head_logits(hidden: Tensor, head: Tensor, products: LinearOps) -> Tensor:
    """hidden [..., H] @ head [H, V] -> float32 [..., V]."""
    x = hidden.reshape(-1, head.shape[0])
    if x.is_cuda and products is FAST and x.dtype is not torch.float32:
        # The sums are already float32: rounding them first would cost a kernel launch and precision.
        return torch.mm(x, head, out_dtype=torch.float32).view(*hidden.shape[:-1], head.shape[1])
    return products.linear(x, head).float().view(*hidden.shape[:-1], head.shape[1])
