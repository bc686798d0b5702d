"""Triton kernels. Faults that a small case detects are also planted on a CPU, in Triton's interpreter."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

INDEXING: Final = "stride / indexing"
GPU: Final = ("gpu1",)
RACE: Final = "race / missing stream order"
TREES: Final = ("eagle3.s3.k4.n8.v2.ragged",)

KERNEL_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="kernel-store-int32",
        klass=INDEXING,
        origin="vllm#47671",
        within="_store",
        old="    slot = tl.load(slots + token)\n",
        new="    slot = tl.load(slots + token).to(tl.int32)\n",
        expected=("kernels",),
        cells=(),
        why="a slot's offset overflows int32 in a large pool",
        tier="gpu1",
        operations=("store_kv",),
    ),
    Fault(
        id="kernel-read-int32",
        klass=INDEXING,
        origin="sglang#20389",
        within="_split",
        old="        here = row + (tl.load(slots + at) * slot_size)[:, None]\n",
        new="        here = row + (tl.load(slots + at).to(tl.int32) * slot_size)[:, None]\n",
        expected=("kernels",),
        cells=(),
        why="attention reads the keys of a large pool at an offset that overflowed int32",
        tier="gpu1",
        operations=("paged_attention",),
    ),
    Fault(
        id="kernel-view-stride",
        klass=INDEXING,
        origin="vllm#53017",
        within="_store",
        old="tl.load(kv + token * kv_stride + column, mask=inside), mask=inside)\n",
        new="tl.load(kv + token * width + column, mask=inside), mask=inside)\n",
        expected=("kernels",),
        cells=TREES,
        why="rows of a strided view are read as if they were contiguous",
        also_on=GPU,
        operations=("store_kv",),
    ),
    Fault(
        id="kernel-parent-stride",
        klass=INDEXING,
        origin="sglang#26997",
        within="_number",
        old="    above = tl.load(parent_list + row * listed + id // topk, mask=inside, other=-1)\n",
        new="    above = tl.load(parent_list + row * (topk + 1) + id // topk, mask=inside, other=-1)\n",
        expected=("kernels",),
        cells=TREES,
        why="parents are indexed with a stride that is correct for two steps only",
        also_on=GPU,
        operations=("select_tree",),
    ),
    Fault(
        id="kernel-norm-of-a-block",
        klass="CUDA-graph capture, padding, buffer size",
        origin="sglang#23331",
        within="_norm",
        old="    length = tl.sqrt(tl.sum(h * h, 0) / width + eps)\n",
        new="    length = tl.sqrt(tl.sum(h * h, 0) / BLOCK + eps)\n",
        expected=("kernels",),
        cells=("eagle3.qwen3.s3.k4.n8.v2.p16.nocache.ragged",),
        why="a norm averages over the padded block, which is correct for power-of-two widths only",
        also_on=GPU,
        operations=("rms_norm", "rms_norm after an addition"),
    ),
    Fault(
        id="kernel-moves-one-by-one",
        klass=RACE,
        origin="sglang#26380",
        within="compact_kv",
        old=(
            "    _copy[grid](data, buffer, source, moved, length, width, BLOCK=block, GATHER=True, **launch(data))\n"
            "    _copy[grid](data, buffer, target, moved, length, width, BLOCK=block, GATHER=False, **launch(data))\n"
        ),
        new=(
            "    for i in range(moved):\n"
            "        one = (1, *grid[1:])\n"
            "        _copy[one](data, buffer, source[i : i + 1], 1, length, width, block, True, PDL=False)\n"
            "        _copy[one](data, buffer, target[i : i + 1], 1, length, width, block, False, PDL=False)\n"
        ),
        expected=("kernels",),
        cells=(),
        why="a slot is overwritten before another move has read it",
        also_on=GPU,
        operations=("compact_kv",),
    ),
    Fault(
        id="kernel-splits-unscaled",
        klass="stale or un-restored state",
        origin="sglang#2465",
        within="_merge",
        old="more_total * weight, mixed * fade[:, None] + more_mixed * weight[:, None]\n",
        new="more_total * weight, mixed + more_mixed * weight[:, None]\n",
        expected=("kernels",),
        cells=(),
        why="partial results of earlier splits are not rescaled to the new maximum",
        also_on=GPU,
        operations=("paged_attention",),
    ),
    Fault(
        id="kernel-stops-early",
        klass="off-by-one length or KV position",
        origin="TensorRT-LLM#13935",
        within="_end",
        old="        stop = tl.minimum(tl.load(starts + request) + width, length).to(tl.int32)\n",
        new="        stop = tl.minimum(tl.load(starts + request) + width - 1, length).to(tl.int32)\n",
        expected=("kernels",),
        cells=(),
        why="the last token of a step is masked where it starts a new tile of keys",
        also_on=GPU,
        operations=("paged_attention",),
    ),
    Fault(
        id="kernel-top-p-of-everything",
        klass="sampling distribution",
        origin="sglang#36173",
        within="_cut",
        old="        wanted = top_p.to(tl.float64) * total\n",
        new=(
            "        _, total, _ = _above(logits, vocab, peak, heat, tl.zeros((), tl.int32), BLOCK)\n"
            "        wanted = top_p.to(tl.float64) * total\n"
        ),
        expected=("kernels",),
        cells=(),
        why="top_p is applied to the mass of all tokens instead of those that top_k kept",
        also_on=GPU,
        operations=("draw",),
    ),
    Fault(
        id="kernel-node-for-parent",
        klass="off-by-one length or KV position",
        origin="sglang#2730",
        within="_accept",
        old="    wanted = tl.load(emit + first + parent, mask=inside, other=0)\n",
        new="    wanted = tl.load(emit + first + node, mask=inside, other=0)\n",
        expected=("kernels",),
        cells=TREES,
        why="a node is compared with the token sampled after itself instead of the one after its parent",
        also_on=GPU,
        operations=("accept_path",),
    ),
    Fault(
        id="kernel-waits-for-nobody",
        klass=RACE,
        origin="kekzl/imp#1655",
        within="wait",
        old="    if PDL:\n        gdc_wait()\n",
        new="    if PDL:\n        gdc_launch_dependents()\n",
        expected=("kernels",),
        cells=(),
        why="a kernel launched early (PDL) reads data that the preceding kernel has not written yet",
        tier="gpu1",
        operations=("fused_linear after another", "paged_attention", "argmax", "compact_kv"),
    ),
    Fault(
        id="kernel-reads-before-it-waits",
        klass=RACE,
        origin="gwoltman/gpuowl#33",
        within="_project",
        old="    wait(PDL)\n    at = out",
        new="    at = out",
        expected=("kernels",),
        cells=(),
        why="a projection reads the norm's input and the residual before it waits for the preceding kernel (PDL)",
        also=(
            Edit(
                "_project",
                "    total, other = _product(\n        x + m",
                "    wait(PDL)\n    total, other = _product(\n        x + m",
            ),
        ),
        tier="gpu1",
        operations=("fused_linear after another",),
    ),
)
