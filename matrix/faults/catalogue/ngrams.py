"""Drafting from n-grams: what the index takes in, whose place in it is whose, and which continuation comes first."""

from typing import Final

from matrix.faults.fault import Edit, Fault

STALE: Final = "stale or un-restored state"
SILENT: Final = "silent fallback / ignored parameter"
INDEX: Final = "engine/core/ngram.py"
DRAFTER: Final = "engine/spec/ngram.py"
BATCH: Final = "ngram.burst"
CELL: Final = "ngram.ragged"

NGRAM_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="grams-oldest-first",
        klass=SILENT,
        origin="semantics 1.1: BFS takes the most recent continuations",
        file=INDEX,
        old="                for child in self._first(reversed(gram.children.values()), gram.depth):\n",
        new="                for child in self._first(gram.children.values(), gram.depth):\n",
        expected=("acceptance",),
        cells=(CELL,),
        why="the continuation that was seen longest ago is drafted first",
    ),
    Fault(
        id="grams-shortest-match-first",
        klass=SILENT,
        origin="semantics 2.7: the longest match goes first",
        file=INDEX,
        old="        for gram in cursor.grams:\n            if len(draft) >= limit:\n",
        new="        for gram in reversed(cursor.grams):\n            if len(draft) >= limit:\n",
        expected=("acceptance",),
        cells=(CELL,),
        why="what followed the last token alone fills the draft before what followed the whole text",
    ),
    Fault(
        id="grams-of-rejected-tokens",
        klass=STALE,
        origin="sglang#26351 (B068), semantics 2.7: accepted tokens are inserted",
        file=DRAFTER,
        old="        draft.pad(width, self.topk, self.steps)\n",
        new="        draft.pad(width, self.topk, self.steps)\n        self.index.learn(Cursor(), draft.tokens[1:])\n",
        expected=("acceptance",),
        cells=(CELL,),
        why="drafts enter the index whether they were accepted or not",
    ),
    Fault(
        id="grams-of-the-former-owner",
        klass=STALE,
        origin="semantics 2.7: match state is erased when a request leaves, sglang#35198",
        file="engine/device/batch.py",
        old="tuple([Known(r.rid, r.tokens) for r in plan.rows if r.tokens])",
        new="tuple([Known(r.row, r.tokens) for r in plan.rows if r.tokens])",
        expected=("acceptance",),
        cells=("ngram.m4.burst",),
        why="a row's place in the index outlives its request, and the next text is read from there on",
    ),
    Fault(
        id="grams-read-late",
        klass="race / missing stream order",
        origin="sglang#35198 (semantics 13.23)",
        file="engine/core/schedule.py",
        old="            tuple(request.tokens) if self.tell else (),\n",
        new="            tuple(request.tokens[:-1] or request.tokens) if self.tell else (),\n",
        expected=("acceptance",),
        cells=(CELL,),
        why="the index reads each text without its last token, as if a step were still unread",
    ),
    Fault(
        id="grams-never-told",
        klass=SILENT,
        origin="semantics 2.7, sglang#35198",
        file="engine/build.py",
        old="        tell=drafter.traits.reads_host,\n",
        new="",
        expected=("acceptance", "effective"),
        cells=(CELL,),
        why="rounds carry no tokens to a drafter that reads them on the host, and it drafts from nothing",
        also=(
            Edit(
                DRAFTER,
                "        readers = [self._read(known) for known in batch.known]\n",
                "        readers = [self._read(known) for known in batch.known] or [Reader() for _ in batch.rows]\n",
            ),
        ),
    ),
    Fault(
        id="grams-at-lag-one",
        klass="wrong or flipped default",
        origin="semantics 1.7: NGRAM never overlaps in this period; sglang#35198",
        file="engine/core/algorithm.py",
        old="    reads_host=True,\n    max_lag=0,\n",
        new="    reads_host=True,\n    max_lag=1,\n",
        expected=("config", "acceptance"),
        cells=("ngram.v2.pair",),
        why="a drafter that reads the host runs while a step is unread",
    ),
    Fault(
        id="grams-window-halved",
        klass=SILENT,
        origin="vllm#44082 (B091), semantics 1.1: a window is match and draft together",
        file=INDEX,
        old="                if gram.alive and gram.depth < self.options.max_trie_depth\n",
        new="                if gram.alive and gram.depth < self.options.max_trie_depth // 2\n",
        expected=("acceptance",),
        cells=(BATCH,),
        why="windows are half as long as asked",
    ),
    Fault(
        id="grams-read-twice",
        klass=STALE,
        origin="semantics 2.7: accepted tokens are inserted once",
        file=INDEX,
        old="        cursor.seen = len(tokens)\n",
        new="        cursor.seen = max(0, len(tokens) - 1)\n",
        expected=("acceptance",),
        cells=(BATCH,),
        why="the last token of a text enters the index again in the next round",
    ),
    Fault(
        id="siblings-twins",
        klass="sampling distribution",
        origin="semantics 4.3: duplicate siblings are not lossless",
        file=INDEX,
        old="        known = self.children[parent].get(token)\n",
        new="        known = None\n",
        expected=("acceptance",),
        cells=(CELL,),
        why="one token stands twice below a node, and both crowd out another",
    ),
    Fault(
        id="grams-always-narrow",
        klass=SILENT,
        origin="semantics 1.1: breadth falls from the most to the fewest with the length of the match",
        file=INDEX,
        old="        breadth = high - (high - low) * (matched - 1) // span\n",
        new="        breadth = low\n",
        expected=("acceptance",),
        cells=(BATCH,),
        why="a short match has as few alternatives as a long one",
    ),
)
