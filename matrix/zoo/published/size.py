"""Parameter counts: of a checkpoint, and of the model that the engine loads from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specmatrix.engine.models.draft_config import DFLASH_ARCHITECTURES, EAGLE3_ARCHITECTURES, EAGLE_ARCHITECTURES

if TYPE_CHECKING:  # a runtime import would import torch
    from specmatrix.engine.models.config import ModelConfig


def stored(config: ModelConfig, target_layers: int = 0) -> int:
    """Number of floating-point parameters in the checkpoint, including bundled prediction layers.

    A draft is counted without its own embedding, as usually published. target_layers: of a draft's target.
    """
    c, hidden = config, config.hidden_size
    if c.draft is not None:
        return _draft(c, target_layers)
    layers = sum(_layer(c, sparse=_sparse(c, i)) for i in range(c.num_layers))
    tables = c.vocab_size * hidden * (1 if c.tie_embeddings else 2)
    return tables + layers + hidden + bundled(c)


def possible(config: ModelConfig, target_layers: int = 0) -> frozenset[int]:
    """The possible values of `stored`, as checkpoints may include or omit tables that the target has too.

    A draft may have its own embedding, and a prediction layer may omit its copies of embedding and head.
    """
    usual, table = stored(config, target_layers), config.vocab_size * config.hidden_size
    if config.draft is not None:
        return frozenset((usual, usual + table))
    return frozenset(usual - copies * table for copies in range(2 * config.bundled_layers + 1))


def held(config: ModelConfig, target: ModelConfig | None = None) -> int:
    """Number of parameters of a loaded model. target: a draft's target, from whose tables it derives its own.

    A tied head is stored in addition to its embedding, as a projection; an EAGLE-3 draft stores a normalised copy of
    the embedding, a DFLASH draft a second copy of the key and value projections.
    """
    c = config
    if c.draft is None:
        tied = c.vocab_size * c.hidden_size if c.tie_embeddings else 0
        return stored(c) - bundled(c) + tied
    own = stored(c, 0 if target is None else target.num_layers)
    if c.architecture in EAGLE3_ARCHITECTURES:
        return own + c.vocab_size * c.hidden_size
    if c.architecture in DFLASH_ARCHITECTURES:
        return own + c.num_layers * 2 * c.num_kv_heads * c.head_dim * c.hidden_size
    return own


def bundled(config: ModelConfig) -> int:
    """Number of parameters in all prediction layers of a target, each with its copies of embedding and head."""
    c, hidden = config, config.hidden_size
    if not c.bundled_layers:
        return 0
    return c.bundled_layers * (_layer(c, sparse=True) + 3 * hidden + 2 * hidden * hidden + 2 * c.vocab_size * hidden)


def _draft(c: ModelConfig, target_layers: int) -> int:
    assert c.draft is not None
    hidden = c.hidden_size
    layers = c.num_layers * _layer(c, sparse=False)
    if c.architecture in EAGLE_ARCHITECTURES:
        return 2 * hidden * hidden + layers - hidden
    fused = len(c.draft.states_of(target_layers)) * c.draft.target_hidden_size
    fuse = fused * hidden if fused != hidden or c.architecture in DFLASH_ARCHITECTURES else 0
    ends = 2 * hidden  # The norm of the hidden states, and the final norm.
    if c.architecture in DFLASH_ARCHITECTURES:
        return fuse + layers + ends
    first = hidden * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim  # Its input is two concatenated rows.
    return fuse + layers + first + ends + c.draft.vocab_size * hidden


def _sparse(c: ModelConfig, layer: int) -> bool:
    return c.experts is not None and layer >= c.experts.dense


def _layer(c: ModelConfig, sparse: bool) -> int:
    """Attention, feed-forward layer and the two norms before them."""
    inner = _experts(c) if sparse else 3 * c.hidden_size * c.intermediate_size
    return (_latent(c) if c.latent is not None else _attention(c)) + inner + 2 * c.hidden_size


def _attention(c: ModelConfig) -> int:
    norms = 2 * c.head_dim if c.head_norms else 0
    return c.hidden_size * c.head_dim * 2 * (c.num_heads + c.num_kv_heads) + norms


def _latent(c: ModelConfig) -> int:
    assert c.latent is not None
    a, hidden, heads = c.latent, c.hidden_size, c.num_heads
    query = heads * (a.plain_dim + a.rotated_dim)
    queries = hidden * query if a.query_rank is None else a.query_rank * (hidden + 1 + query)
    shared = hidden * (a.rank + a.rotated_dim) + a.rank
    return queries + shared + a.rank * heads * (a.plain_dim + a.value_dim) + heads * a.value_dim * hidden


def _experts(c: ModelConfig) -> int:
    assert c.experts is not None
    e = c.experts
    return 3 * c.hidden_size * e.inner * (e.routed + e.shared) + e.routed * (c.hidden_size + 1)
