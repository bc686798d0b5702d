"""The recurrence of a gated delta net (arXiv 2412.06464): a causal depthwise convolution, then the gated delta rule."""

from __future__ import annotations

from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import select_backend
from specmatrix.kernels.gated_delta import eager


def gated_delta(
    u: Tensor,
    b: Tensor,
    a: Tensor,
    conv: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    windows: Tensor,
    states: Tensor,
    read: Tensor,
    write: Tensor,
    parents: Tensor | None = None,
) -> Tensor:
    """N tokens per request, each after its parent's state -> float32 [B, N, Hv, Dv].

    u [B, N, C]: queries, keys and values before the convolution, C = 2 Hk Dk + Hv Dv; b and a [B, N, Hv]: the inputs of
    beta = sigmoid(b) and decay = exp(-exp(a_log) softplus(a + dt_bias)); conv [C, K], the last tap is the current
    token's; a_log and dt_bias float32 [Hv]. With c = silu(convolution), keys and queries of unit length, queries
    divided by sqrt(Dk), and value head h on key head floor(h Hk / Hv): S <- decay S; S <- S + k (beta (v - S^T k))^T;
    the result is S^T q. All in float32, one token after the other, so that bits do not depend on how tokens are cut
    into calls.

    windows [S, K - 1, C]: the last inputs of the convolution, and states float32 [S, Hv, Dk, Dv], by slot. read int64
    [B]: the slot that the first token continues; write int64 [B, N]: the slot that takes the state after each token;
    slot 0 is never written. parents int64 [B, N]: each token's parent, -1 for the first and then an earlier token whose
    slot was written; None: the token before it. KernelError on other shapes.
    """
    batch, tokens, channels = u.shape
    slots, heads, key_dim, value_dim = states.shape
    key_width = channels - heads * value_dim
    if key_width <= 0 or key_width % (2 * key_dim) or heads % (key_width // (2 * key_dim)):
        raise preconditions.shape_error("gated_delta", "u", u, ("B", "N", f"2 Hk {key_dim} + {heads * value_dim}"))
    wanted = {"b": (b, (batch, tokens, heads)), "a": (a, (batch, tokens, heads)), "a_log": (a_log, (heads,))}
    wanted |= {"dt_bias": (dt_bias, (heads,)), "conv": (conv, (channels, windows.shape[1] + 1))}
    wanted |= {"windows": (windows, (slots, windows.shape[1], channels)), "read": (read, (batch,))}
    wanted |= {"write": (write, (batch, tokens))} | ({} if parents is None else {"parents": (parents, (batch, tokens))})
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape:
            raise preconditions.shape_error("gated_delta", name, tensor, shape)
    backend = select_backend(eager, u)
    return backend.gated_delta(u, b, a, conv, a_log, dt_bias, windows, states, read, write, parents)
