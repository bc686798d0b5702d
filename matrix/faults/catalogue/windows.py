"""Sliding windows: what a layer may look back at, which pages lie behind it, and what a turn may still take back."""

from typing import Final

from matrix.faults.fault import Fault

POOL: Final = "sliding-window pool / eviction"
INDEX: Final = "off-by-one length or KV position"
BOOK: Final = "engine/core/window.py"
DEVICE: Final = "engine/device/window.py"
PLAIN: Final = "none.qwen3.v2.p4.nocache.c7.ragged"
TREE: Final = "eagle3.qwen3.s3.k4.n8.v2.p16.nocache.ragged"
TURNS: Final = "eagle3.qwen3.s3.v2.p4.nocache.ragged.stream"

WINDOW_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="window-token-short",
        klass=INDEX,
        origin="semantics 5.9",
        file=DEVICE,
        old="    far = keys[:, None, :] <= queries[:, :, None] - window\n",
        new="    far = keys[:, None, :] <= queries[:, :, None] - window + 1\n",
        expected=("lossless",),
        cells=(PLAIN,),
        why="a layer looks back one token fewer than its window, in the baseline too",
    ),
    Fault(
        id="window-by-slot",
        klass="stride / indexing",
        origin="sglang#22679 (B022)",
        file=DEVICE,
        old="        queries = positions.clamp(max=batch.reach - 1)\n",
        new="        queries = batch.positions.clamp(max=batch.reach - 1)\n",
        expected=("lossless",),
        cells=("standalone.qwen3.s5.k2.n16.sync.p16.nocache.c7.exam",),
        why="the window of a tree's node begins behind its slot, not behind its depth",
    ),
    Fault(
        id="window-query-unclamped",
        klass="CUDA-graph capture, padding, buffer size",
        origin="semantics 5.9, sglang#22679 (B022)",
        file=DEVICE,
        old="        queries = positions.clamp(max=batch.reach - 1)\n",
        new="        queries = positions\n",
        expected=("session", "lossless"),
        cells=("none.qwen3.v1.p64.nocache.burst.stream.abort_running",),
        why="a padded query behind every key sees none, and what it writes is no number",
    ),
    Fault(
        id="window-ignored",
        klass="silent fallback / ignored parameter",
        origin="sglang#22679 (B022)",
        file=DEVICE,
        old='    return bias.masked_fill(far[:, None], float("-inf"))\n',
        new="    return bias\n",
        expected=("lossless",),
        cells=(PLAIN,),
        why="the layers look at everything, also at pages that are others' by now",
    ),
    Fault(
        id="window-tree-uncompacted",
        klass="stride / indexing",
        origin="semantics 5.5, sglang#22679 (B022)",
        file=DEVICE,
        old="        self.pool.move(source.flatten(), target.flatten())\n",
        new="",
        expected=("lossless",),
        cells=(TREE,),
        why="the accepted path is moved together in the other layers' pool only",
    ),
    Fault(
        id="window-never-slides",
        klass=POOL,
        origin="sglang#34924 (B023)",
        file=BOOK,
        old="        return max(0, committed - self.window.margin - self.window.tokens + 1) // self.page_size\n",
        new="        return 0\n",
        expected=("effective",),
        cells=(PLAIN, TREE),
        why="pages that nobody reads any more stay owned until the request ends",
    ),
    Fault(
        id="window-margin-forgotten",
        klass=POOL,
        origin="sglang#22900 (B015)",
        file=BOOK,
        old="        return max(0, committed - self.window.margin - self.window.tokens + 1) // self.page_size\n",
        new="        return max(0, committed - self.window.tokens + 1) // self.page_size\n",
        expected=("session", "effective"),
        cells=(TURNS,),
        why="pages slide away that a turn's end takes back, so the session cannot keep its KV",
    ),
    Fault(
        id="window-table-from-zero",
        klass=POOL,
        origin="sglang#22679 (B022)",
        file=DEVICE,
        old="                    first_page=row.window_first,\n",
        new="                    first_page=0,\n",
        expected=("ledger",),
        cells=(PLAIN,),
        why="added window pages are entered at the front of the row's table",
    ),
    Fault(
        id="window-padding-written",
        klass="CUDA-graph capture, padding, buffer size",
        origin="semantics 5.1",
        file=DEVICE,
        old="        return WindowStep(read, write.masked_fill(batch.write == 0, 0))\n",
        new="        return WindowStep(read, write)\n",
        expected=("ledger",),
        cells=("standalone.qwen3.s1.nocache.burst",),
        why="tokens that pad a shorter row are written behind it, or over its last position",
    ),
    Fault(
        id="window-resumed-bare",
        klass=POOL,
        origin="sglang#22679 (B022)",
        file="engine/core/schedule.py",
        old="        return (tuple(span.pages), span.first) if admitted else (added, span.end - len(added))\n",
        new="        return (added, span.end - len(added))\n",
        expected=("ledger",),
        cells=(TURNS,),
        why="a turn enters the window pages that it adds, and not those that its session held",
    ),
    Fault(
        id="window-layers-swapped",
        klass="config parsing, weights, draft/target mix-up",
        origin="sglang#22679 (B022)",
        file="engine/models/windows.py",
        old="    return tuple(size if kind == SLIDING else None for kind in kinds)\n",
        new="    return tuple(size if kind == FULL else None for kind in kinds)\n",
        expected=("lossless",),
        cells=(PLAIN,),
        why="the layers that see everything have the window, and the others do not",
    ),
)
