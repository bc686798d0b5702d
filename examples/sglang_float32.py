"""SGLang's server on a GPU in float32: `python sglang_float32.py FLAGS`, with the flags of `sglang.launch_server`, in
an environment that has SGLang 0.5.13 or 0.5.17.

Its kernels of RMS norms have no float32, and its chunked delta rule refuses it. Here norms are SGLang's own in torch,
and the delta rule's kernels get float32 nevertheless, so cells that run with it say nothing of kernels of norms, but
of all the rest. Triton multiplies in float32 too, not in TF32.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

from torch import Tensor

FLOAT32: Final = (
    *("--dtype", "float32", "--mamba-ssm-dtype", "float32"),
    *("--attention-backend", "triton", "--sampling-backend", "pytorch"),
)
EXACT: Final = {"TRITON_F32_DEFAULT": "ieee", "SGLANG_MAMBA_CONV_DTYPE": "float32"}


def supply() -> None:
    """Put what runs in float32 where SGLang's modules look for it."""
    from sglang.srt.layers import layernorm

    try:
        from sglang.kernels.ops.attention import fla
    except ImportError:  # before 0.5.16
        from sglang.srt.layers.attention import fla

    import_module(f"{fla.__name__}.utils").is_tf32_supported = False  # read when the next module is imported
    chunk = import_module(f"{fla.__name__}.chunk")
    from sglang.srt.layers.attention.linear.kernels import gdn_triton

    for norm in (layernorm.RMSNorm, layernorm.GemmaRMSNorm):
        norm.forward_cuda = norm.forward_native

    def chunked(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        initial_state: Tensor,
        cu_seqlens: Tensor,
        initial_state_indices: Tensor,
        head_first: bool,
        use_qk_l2norm_in_kernel: bool,
    ) -> tuple[Tensor, None, Tensor]:
        states = initial_state, initial_state_indices, cu_seqlens
        rule = chunk.ChunkGatedDeltaRuleFunction
        out, left = rule.apply(q, k, v, g, beta, q.shape[-1] ** -0.5, *states, use_qk_l2norm_in_kernel)
        return out, None, left

    gdn_triton.chunk_gated_delta_rule = chunked


# In the scheduler's process, which imports this file anew, its name is another.
if __name__ in ("__main__", "__mp_main__"):
    os.environ |= EXACT
    # A script's own folder comes first, and must not hide a package of SGLang's.
    sys.path[:] = [one for one in sys.path if one != str(Path(__file__).resolve().parent)]
    supply()

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args([*FLOAT32, *sys.argv[1:]]))
