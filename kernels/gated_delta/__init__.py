"""The recurrence of a gated delta net (arXiv 2412.06464): a causal depthwise convolution, then the gated delta rule."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.kernels import preconditions
from specmatrix.kernels.backend import compiled_module, on_triton, triton_module
from specmatrix.kernels.decoder_layer import as_array

USERS = "models with recurrent states"
CHUNK = 64  # tokens of a chunk of the chunked form


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
    chunk: bool = False,
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

    chunk: each row writes at most one slot, and bits may depend on the cut, so on CUDA 32 tokens or more in a dtype of
    two bytes take the chunked form, whose products have operands of that dtype.
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
    preconditions.shapes("gated_delta", **wanted)
    if on_triton(u):
        return triton_module(__name__).gated_delta(
            u, b, a, conv, a_log, dt_bias, windows, states, read, write, parents, chunk and parents is None
        )
    preconditions.contiguous("gated_delta", states=states, read=read, write=write)
    # No function of it has another routine for the last few numbers of a chunk, as torch.sigmoid has on a CPU.
    mixed, beta, decay = prepare(u, b, a, conv, a_log, dt_bias, windows, read, write, parents)
    made = torch.empty(batch, tokens, heads, value_dim)
    tree = write if parents is None else parents
    given = (mixed, beta, decay, states, read, write, tree)
    compiled_module(__name__, USERS).recur(
        *(as_array(part.contiguous()) for part in given), parents is not None, key_dim**-0.5, as_array(made)
    )
    return made


def scratch(
    batch: int, tokens: int, heads: int, key_dim: int, value_dim: int, dtype: torch.dtype
) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    """Shape and dtype of each temporary tensor of the chunked form: W, U, the state before each chunk, the cumulated
    logarithms of decays, and where in its chunk a row's last token is."""
    chunks, whole = -(-tokens // CHUNK), (batch, heads, tokens)
    states = ((batch, heads, chunks, key_dim, value_dim), dtype)
    decays, ends = (whole, torch.float32), ((batch, chunks), torch.int32)
    return ((*whole, key_dim), dtype), ((*whole, value_dim), dtype), states, decays, ends


def load(device: torch.device) -> None:
    """Compile what a CPU runs, so that no step waits for it. ConfigError without numba."""
    if device.type == "cpu":
        compiled_module(__name__, USERS)


def prepare(
    u: Tensor,
    b: Tensor,
    a: Tensor,
    conv: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    windows: Tensor,
    read: Tensor,
    write: Tensor,
    parents: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs of the delta rule, and the new windows: c [B, N, C], beta and decay [B, N, Hv], all float32."""
    taps = _taps(torch.cat((windows.index_select(0, read), u), 1), conv.shape[1], parents)
    mixed = taps[0].float() * conv[:, 0].float()
    for tap, part in enumerate(taps[1:], 1):
        mixed = mixed + part.float() * conv[:, tap].float()
    if conv.shape[1] > 1:
        _put(windows, write.flatten(), torch.stack(taps[1:], 2).flatten(0, 1))
    mixed = mixed / (1 + (-mixed).exp())
    beta = 1 / (1 + (-b.float()).exp())
    rate = a.float() + dt_bias
    rate = torch.where(rate > 20, rate, rate.exp().log1p())
    return mixed, beta, (-a_log.exp() * rate).exp()


def _taps(line: Tensor, taps: int, parents: Tensor | None) -> list[Tensor]:
    """The convolution's inputs [B, N, C] of each token, oldest first. line [B, K - 1 + N, C]: window, then tokens."""
    before = taps - 1
    tokens = line.shape[1] - before
    if parents is None:
        return [line[:, tap : tap + tokens] for tap in range(taps)]
    order = torch.arange(line.shape[1], device=line.device)
    earlier = (order[:before] - 1).clamp(min=0).expand(len(line), -1)
    above = torch.cat((earlier, parents + before), 1)  # the root's parent is the window's last row
    found = [order[before:].expand(len(line), -1)]
    for _ in range(before):
        found.append(above.gather(1, found[-1]))
    return [line.gather(1, at[:, :, None].expand(-1, -1, line.shape[2])) for at in reversed(found)]


def _put(pool: Tensor, slots: Tensor, rows: Tensor) -> None:
    """pool[slots] = rows, except slot 0, which keeps its content."""
    padding = (slots == 0).view(-1, *[1] * (rows.dim() - 1))
    pool.index_copy_(0, slots, torch.where(padding, pool[:1], rows))
