"""Tensor-parallel ranks that decide independently or use the wrong shard."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

DIVERGENCE: Final = "TP/DP rank divergence or idle-rank asymmetry"
FALLBACK: Final = "silent fallback / ignored parameter"
INDEXING: Final = "stride / indexing"
TREE: Final = "eagle3.tp2.s3.k4.n8.v2.p16.pair.stream.mixed"
CELLS: Final = ("eagle3.tp2.pair", TREE)
# Simulates ranks that round logits differently. Harmless by itself, because rank 0 decides.
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
        why="each rank samples its own token in a round, and logits round differently across ranks",
        also=(ROUNDS_OTHERWISE,),
    ),
    Fault(
        id="rank-begins-alone",
        klass=DIVERGENCE,
        origin="sglang#31071 (a branch without the broadcast)",
        within="DeviceStep._prefill",
        old="        sampled = self.ranks.agreed(pick(logits, end[:, None], rows))\n",
        new="        sampled = pick(logits, end[:, None], rows)\n",
        expected=("ranks",),
        cells=("eagle3.tp2.s3.k4.n8.nocache.tight.pair.mixed.length", TREE),
        why="each rank samples its own first token after the prompt; later tokens agree",
        also=(ROUNDS_OTHERWISE,),
    ),
    Fault(
        id="rank-drafts-alone",
        klass=DIVERGENCE,
        origin="sglang#40246, sglang#33614, vllm#31307",
        within="agreed_tree",
        old="    if ranks.size == 1:\n        return tree\n",
        new=(
            "    last = tree.tokens[:, -1:] ^ min(ranks.rank, 1)  # near ties resolve differently there\n"
            "    return tree._replace(tokens=torch.cat((tree.tokens[:, :-1], last), 1))\n"
        ),
        expected=("ranks",),
        cells=CELLS,
        why="each rank verifies its own drafts, which differ where near ties resolve differently",
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
        why="one rank allocates pages in another order, which changes no token",
    ),
    Fault(
        id="rank-frees-late",
        klass=DIVERGENCE,
        origin="sglang#22458 (the ranks' radix trees diverge)",
        within="build",
        old="drafter.key_span, resolved.radix_cache)\n",
        new="drafter.key_span, resolved.radix_cache and not ranks.rank)\n",
        expected=("ranks",),
        cells=("none.tp2.pair", TREE),
        why="at a request's end one rank frees the pages that the others insert into the prefix cache",
    ),
    Fault(
        id="rank-watched-by-nobody",
        klass=FALLBACK,
        origin="sglang#32459 (K13: usage counters)",
        within="build",
        old="    observers = [] if publish is None else [RankDigest(ledger, publish, counters)]\n",
        new="    observers: list[RankDigest] = []\n",
        expected=("ranks", "effective"),
        cells=CELLS,
        why="no rank reports its steps, so nothing is compared",
    ),
    Fault(
        id="ranks-dropped",
        klass=FALLBACK,
        origin="sglang#32459 (K13: usage counters)",
        within="RankedSubject.start_engine",
        old="        if config.tp_size == 1:\n            return super().start_engine(config)\n",
        new=(
            "        from dataclasses import replace\n\n"
            "        return super().start_engine(replace(config, tp_size=1))\n"
        ),
        expected=("config", "ranks"),
        cells=("none.tp2.pair",),
        why="two ranks are configured, but one runs",
    ),
    Fault(
        id="partial-sums-left-apart",
        klass=INDEXING,
        origin="rule: several ranks compute the same as one (K1: token equality)",
        within="LinearOps.over",
        old="out.add_(ranks.total(self.linear(x, weight))))\n",
        new="out.add_(self.linear(x, weight)))\n",
        expected=("lossless",),
        cells=("none.tp2.pair",),
        why="the all-reduce is missing, so each rank continues with its own heads' partial sum",
    ),
    Fault(
        id="words-of-another-rank",
        klass=INDEXING,
        origin="rule: several ranks compute the same as one (K1: token equality)",
        within="Vocabulary.words",
        old="self._ranks.total(found.masked_fill_(others[:, None], 0))\n",
        new="self._ranks.total(found)\n",
        expected=("lossless",),
        cells=("none.tp2.pair",),
        why="a token outside a rank's vocabulary shard adds the shard's first embedding instead of zero",
    ),
    Fault(
        id="second-engine-of-the-ranks",
        klass="stale or un-restored state",
        origin="rule: what ranks publish belongs to the engine that they serve",
        within="RankGroup.begin",
        old="        self.comparison = RankComparison(self.size)\n",
        new="        assert self.comparison is not None\n",
        expected=("ranks",),
        cells=("none.tp2.pair", "eagle3.tp2.pair"),
        why="a group that serves a second engine goes on with the first one's comparison",
    ),
)
