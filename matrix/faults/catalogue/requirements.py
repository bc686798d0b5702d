"""Logit rules, minimum lengths, kept and overlapping stops, and streamed reads."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

RULES: Final = "logit rules"
STOPS: Final = "stop / EOS / length-cap handling"
CHAIN: Final = "none.ragged.rules"
TREE: Final = "eagle3.s3.k4.n8.v2.p16.ragged.rules"
STOPPED: Final = "none.ragged.stops"

REQUIREMENT_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="rules-tokens-one-late",
        klass=RULES,
        origin="rule: a penalty sees every token that was emitted, the last round's too",
        within="DeviceStep._round",
        old="            self.rules.record(batch.rows, batch.start + 1, verdict.tokens)\n",
        new="            self.rules.record(batch.rows, batch.start + 2, verdict.tokens)\n",
        expected=("lossless",),
        cells=(TREE,),
        why="the device's copy of a request's tokens is shifted by one, so penalties and bad words see other tokens",
    ),
    Fault(
        id="rules-round-unrecorded",
        klass=RULES,
        origin="rule: every accepted token of a round counts for the next one",
        within="DeviceStep._round",
        old="            self.rules.record(batch.rows, batch.start + 1, verdict.tokens)\n",
        new="            self.rules.record(batch.rows, batch.start + 1, verdict.tokens[:, :1])\n",
        expected=("lossless",),
        cells=(TREE,),
        why="only the first token of a round joins what later penalties and bad words see",
    ),
    Fault(
        id="penalties-forget-drafts",
        klass=RULES,
        origin="rule: a node sees its ancestors' drafts as plain decoding would",
        within="_penalised",
        old="    repeated = (seen[:, None] | (drafted > 0))[..., :-1]\n",
        new=(
            "    repeated = seen[:, None, :-1].expand(batch, nodes, vocab)\n"
            "    times = output[:, None, :-1].expand_as(times)\n"
        ),
        expected=("lossless",),
        cells=(TREE,),
        why="penalties at a draft node count the tokens before the round only",
    ),
    Fault(
        id="penalties-over-the-prompt",
        klass=RULES,
        origin="rule: presence and frequency penalties concern the output only",
        within="_penalised",
        old="    emitted = torch.where(past & (index >= rules.prompt), known, vocab)\n",
        new="    emitted = torch.where(past, known, vocab)\n",
        expected=("lossless",),
        cells=(CHAIN,),
        why="presence and frequency penalties also count the prompt",
    ),
    Fault(
        id="bias-at-the-root-only",
        klass=RULES,
        origin="rule: every node of a tree has the request's logit bias",
        within="LogitRules.adjusted",
        old="            logits = logits + blank.scatter(1, rules.bias_ids, rules.bias)[:, None, :-1]\n",
        new=(
            "            logits = logits.clone()\n"
            "            logits[:, 0] += blank.scatter(1, rules.bias_ids, rules.bias)[:, :-1]\n"
        ),
        expected=("lossless",),
        cells=(TREE,),
        why="logit bias is added at a tree's root and at no draft",
    ),
    Fault(
        id="min-p-at-the-root-only",
        klass=RULES,
        origin="rule: min_p holds at every node of a tree",
        within="without_unlikely",
        old='    return logits.masked_fill(ratio < min_p, float("-inf"))\n',
        new=(
            "    unlikely = ratio < min_p\n"
            "    unlikely[:, 1:] = False\n"
            '    return logits.masked_fill(unlikely, float("-inf"))\n'
        ),
        expected=("lossless",),
        cells=(TREE,),
        why="a draft node draws tokens that min_p removes",
    ),
    Fault(
        id="min-p-unheard",
        klass=RULES,
        origin="rule: a request's min_p arrives at every step",
        within="LogitRules._gathered",
        old="            min_p = floats([params.min_p for params in asked], device).view(column)\n",
        new="            min_p = floats([0.0 for params in asked], device).view(column)\n",
        expected=("lossless",),
        cells=(CHAIN,),
        why="tokens below min_p are drawn",
    ),
    Fault(
        id="rules-after-retraction",
        klass=RULES,
        origin="rule: a retracted request returns with all of its tokens",
        within="Scheduler._chunk",
        old="            arrived=(len(request.prompt), tuple(tokens)) if admitted and request.adjusts else None,\n",
        new="            arrived=(len(tokens), tuple(tokens)) if admitted and request.adjusts else None,\n",
        expected=("lossless",),
        cells=("eagle3.s3.v2.c7.tight.ragged.rules.length",),
        why="after a retraction the output so far counts as prompt, so presence and frequency begin anew",
    ),
    Fault(
        id="minimum-one-short",
        klass=STOPS,
        origin="rule: the first min_new_tokens tokens hold no stop token",
        within="LogitRules._bans",
        old="            bans += [((token,), params.min_new_tokens) for token in sorted(params.stops(self.eos_ids))]\n",
        new="            bans += [((token,), 8) for token in sorted(params.stops(self.eos_ids))]\n",
        expected=("finish", "lossless"),
        cells=(STOPPED,),
        why="EOS is allowed before the minimum length is reached",
    ),
    Fault(
        id="kept-stop-cut",
        klass=STOPS,
        origin="rule: no_stop_trim keeps the stop string",
        within="StopRules.judge",
        old="                start += len(matched)\n",
        new="                pass\n",
        expected=("finish",),
        cells=(STOPPED,),
        why="a stop string is cut although the request keeps it",
    ),
    Fault(
        id="overlapping-stop-latest",
        klass=STOPS,
        origin="rule: of stop strings that end together the first to start counts",
        within="StopRules._first_stop_string",
        old="        start, _, stop = min(hits)\n",
        new="        start, _, stop = max(hits)\n",
        expected=("finish",),
        cells=(STOPPED,),
        why="of overlapping stop strings the one that starts last is cut, so the others' beginning stays",
    ),
    Fault(
        id="asked-stops-ignored-with-eos",
        klass=STOPS,
        origin="rule: ignore_eos does not concern stop_token_ids",
        within="StopRules.of",
        old="        eos = frozenset() if params.ignore_eos else eos_ids\n",
        new=(
            "        eos = frozenset() if params.ignore_eos else eos_ids\n"
            "        if params.ignore_eos:\n"
            "            return cls(eos, tuple(params.stop), params.max_new_tokens, params.no_stop_trim)\n"
        ),
        expected=("finish",),
        cells=(STOPPED,),
        why="ignore_eos also ignores the request's own stop tokens",
    ),
    Fault(
        id="stream-shows-a-stops-beginning",
        klass=STOPS,
        origin="rule: a text that was read is never taken back",
        within="readable",
        old="    return text if request.finish else text[: stable_text_length(text, tuple(request.params.stop))]\n",
        new="    return text\n",
        expected=("finish",),
        cells=(STOPPED,),
        why="a streamed text shows the beginning of a stop string that is then removed",
    ),
)
