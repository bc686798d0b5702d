"""Ranks of one engine that stop being one: each decides for itself, or holds the wrong part."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

DIVERGENCE: Final = "TP/DP rank divergence or idle-rank asymmetry"
FALLBACK: Final = "silent fallback / ignored parameter"
INDEXING: Final = "stride / indexing"
TREE: Final = "eagle3.tp2.s3.k4.n8.v2.p16.pair.stream.mixed"
CELLS: Final = ("eagle3.tp2.pair", TREE)
# Another GPU rounds logits in another way. As rank 0 decides, this alone changes nothing.
ROUNDS_OTHERWISE: Final = Edit(
    "Vocabulary.joined",
    "self._ranks.joined(logits)[..., : self._size]\n",
    "(\n"
    "            (lambda found: found.round() if self._ranks.rank else found)(\n"
    "                self._ranks.joined(logits)[..., : self._size]\n"
    "            )\n"
    "        )\n",
)

RANK_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="rank-samples-alone",
        klass=DIVERGENCE,
        origin="sglang#22458, sglang#31071",
        within="verify",
        old="    emit = ranks.agreed(pick(",
        new="    emit = (pick(",
        expected=("ranks",),
        cells=CELLS,
        why="each rank takes its own token of a round where logits are rounded otherwise",
        also=(ROUNDS_OTHERWISE,),
    ),
    Fault(
        id="rank-begins-alone",
        klass=DIVERGENCE,
        origin="sglang#31071 (a sibling branch without the broadcast)",
        within="DeviceStep._prefill",
        old="        sampled = self.ranks.agreed(pick(logits, end[:, None], rows))\n",
        new="        sampled = pick(logits, end[:, None], rows)\n",
        expected=("ranks",),
        cells=("eagle3.tp2.s3.k4.n8.nocache.tight.pair.mixed.length", TREE),
        why="each rank takes its own token behind a prompt, and agrees only afterwards",
        also=(ROUNDS_OTHERWISE,),
    ),
    Fault(
        id="rank-drafts-alone",
        klass=DIVERGENCE,
        origin="sglang#40246, sglang#33614, vllm#31307",
        within="agreed_tree",
        old="    if ranks.size == 1:\n        return tree\n",
        new=(
            "    last = tree.tokens[:, -1:] ^ min(ranks.rank, 1)  # a near tie falls otherwise there\n"
            "    return tree._replace(tokens=torch.cat((tree.tokens[:, :-1], last), 1))\n"
        ),
        expected=("ranks",),
        cells=CELLS,
        why="each rank verifies its own drafts, which differ where a tie falls otherwise",
    ),
    Fault(
        id="rank-hands-out-other-pages",
        klass=DIVERGENCE,
        origin="rule: every rank runs the same ledger (K10: per-rank digest comparison)",
        within="build",
        old="    cache = PrefixCache(",
        new="    ledger.free.sort(reverse=not ranks.rank)\n    cache = PrefixCache(",
        expected=("ranks",),
        cells=CELLS,
        why="one rank hands out its pages in another order, which changes no token",
    ),
    Fault(
        id="rank-frees-late",
        klass=DIVERGENCE,
        origin="sglang#22458 (the radix trees of ranks part)",
        within="build",
        old="drafter.key_span, resolved.radix_cache)\n",
        new="drafter.key_span, resolved.radix_cache and not ranks.rank)\n",
        expected=("ranks",),
        cells=("none.tp2.pair", TREE),
        why="one rank frees at a request's end the pages that the others put into their prefix cache",
    ),
    Fault(
        id="rank-watched-by-nobody",
        klass=FALLBACK,
        origin="sglang#32459 (K13: usage counters)",
        within="build",
        old="    observers = [] if tell is None else [RankDigest(ledger, tell, probes)]\n",
        new="    observers: list[RankDigest] = []\n",
        expected=("ranks", "effective"),
        cells=CELLS,
        why="no rank tells what it does, so nothing is compared",
    ),
    Fault(
        id="ranks-dropped",
        klass=FALLBACK,
        origin="sglang#32459 (K13: usage counters)",
        within="RankedSubject.start",
        old="        if config.tp_size == 1:\n            return super().start(config)\n",
        new=("        from dataclasses import replace\n\n        return super().start(replace(config, tp_size=1))\n"),
        expected=("config", "ranks"),
        cells=("none.tp2.pair",),
        why="an engine of two ranks is asked for, and one runs",
    ),
    Fault(
        id="partial-sums-left-apart",
        klass=INDEXING,
        origin="rule: several ranks compute what one does (K1: token equality)",
        within="LinearOps.over",
        old="out.add_(ranks.total(self.linear(x, weight))))\n",
        new="out.add_(self.linear(x, weight)))\n",
        expected=("lossless",),
        cells=("none.tp2.pair",),
        why="each rank goes on with its own heads' part of the residual stream",
    ),
    Fault(
        id="words-of-another-rank",
        klass=INDEXING,
        origin="rule: several ranks compute what one does (K1: token equality)",
        within="Vocabulary.words",
        old="self._ranks.total(found.masked_fill_(others[:, None], 0))\n",
        new="self._ranks.total(found)\n",
        expected=("lossless",),
        cells=("none.tp2.pair",),
        why="a rank adds its first word to every word that another rank holds",
    ),
)
