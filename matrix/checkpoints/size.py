"""How many numbers a checkpoint of a shape holds, and how many the engine keeps of it."""

from __future__ import annotations

from specmatrix.engine.models.config import ModelConfig
from specmatrix.engine.models.draft_config import DFLASH_ARCHITECTURES, EAGLE3_ARCHITECTURES, EAGLE_ARCHITECTURES


def stored(config: ModelConfig, target_layers: int = 0) -> int:
    """Floating numbers in the checkpoint's weights, bundled layers among them.

    A draft is counted as they are published, without an embedding of its own. target_layers: of a draft's target.
    """
    c, hidden = config, config.hidden_size
    if c.draft is not None:
        return _draft(c, target_layers)
    layers = sum(_layer(c, sparse=_sparse(c, i)) for i in range(c.num_layers))
    tables = c.vocab_size * hidden * (1 if c.tie_embeddings else 2)
    return tables + layers + hidden + bundled(c)


def possible(config: ModelConfig, target_layers: int = 0) -> frozenset[int]:
    """What `stored` may come to, as checkpoints may bring or leave out tables that are the target's anyhow.

    A draft may have an embedding of its own, a prediction layer none of its copies of embedding and head.
    """
    usual, table = stored(config, target_layers), config.vocab_size * config.hidden_size
    if config.draft is not None:
        return frozenset((usual, usual + table))
    return frozenset(usual - copies * table for copies in range(2 * config.bundled_layers + 1))


def held(config: ModelConfig, target: ModelConfig | None = None) -> int:
    """Numbers that a loaded model keeps. target: of a draft, which makes tables of the target's.

    A tied head is kept beside its embedding, as a projection; an EAGLE-3 draft keeps a normed copy of the embedding,
    a DFLASH draft the projections of keys and values once more.
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
    """Numbers of all prediction layers that a target brings, each with its copies of embedding and head."""
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
    ends = 2 * hidden  # The norm of the states, and the last one.
    if c.architecture in DFLASH_ARCHITECTURES:
        return fuse + layers + ends
    first = hidden * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim  # It reads pairs of rows.
    return fuse + layers + first + ends + c.draft.vocab_size * hidden


def _sparse(c: ModelConfig, layer: int) -> bool:
    return c.experts is not None and layer >= c.experts.dense


def _layer(c: ModelConfig, sparse: bool) -> int:
    """Attention, feed-forward part and the two norms before them."""
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
