"""Stop conditions, length limits, output texts and the reported metrics."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

KLASS: Final = "stop / EOS / length-cap handling"
METRIC: Final = "metric misreport"

ENDING_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="length-beats-stop",
        klass=KLASS,
        origin="sglang#33758",
        within="Loop._deliver",
        old="            if finish is not None:\n",
        new=(
            "            if finish and shown + count >= rules.max_new_tokens:\n"
            '                finish = type(finish)("length") if len(request.output) >= rules.max_new_tokens else None\n'
            "            if finish is not None:\n"
        ),
        expected=("finish", "lossless"),
        cells=("eagle3.s5.v2.nocache.tight.ragged.stop_token",),
        why="accepted tokens that pass the length limit finish by length although they contain a stop",
    ),
    Fault(
        id="stop-overrun",
        klass=KLASS,
        origin="sglang#25980, sglang#31738",
        within="Loop._deliver",
        old="                self.scheduler.finish(request, finish)\n",
        new=(
            "                request.output.extend(result.tokens[index][len(output) - shown : count])\n"
            "                self.scheduler.finish(request, finish)\n"
        ),
        expected=("finish", "lossless"),
        cells=("eagle3.s5.v2.p4.ragged.stop_token",),
        why="tokens accepted after a stop are returned",
    ),
    Fault(
        id="length-overrun",
        klass=KLASS,
        origin="sglang#22897",
        within="StopRules.judge",
        old="        if count >= self.max_new_tokens:\n",
        new="        if count > self.max_new_tokens:\n",
        expected=("finish",),
        cells=("none.v1.pair.length",),
        why="one token more than max_new_tokens is generated",
    ),
    Fault(
        id="context-ends-a-draft-early",
        klass="off-by-one length or KV position",
        origin="rule: a request may use the last position of the context, even if drafts are written past it",
        within="Loop.add",
        old="        self._rules[request.rid] = StopRules.of(request.params, self.eos_ids)\n",
        new=(
            "        asked = StopRules.of(request.params, self.eos_ids)\n"
            "        room = self.scheduler.context_length - len(request.prompt) - self.scheduler.width + 1\n"
            "        limit = min(asked.max_new_tokens, room)\n"
            "        self._rules[request.rid] = StopRules(asked.stop_ids, asked.stop_strings, limit)\n"
        ),
        expected=("finish", "lossless", "effective"),
        cells=("standalone.s5.v2.ctx.pair.length", "eagle3.s3.k4.n8.v1.p4.ctx.pair.length"),
        why="a request ends where the next round's drafts would pass the context length",
    ),
    Fault(
        id="stop-string-left",
        klass=KLASS,
        origin="sglang#28802",
        within="StopRules.judge",
        old="            transcript.cut(start)\n",
        new="",
        expected=("finish",),
        cells=("none.v1.pair.stop_string",),
        why="the stop string stays in the output text",
    ),
    Fault(
        id="stop-string-split-missed",
        klass=KLASS,
        origin="sglang#28802: stop strings across token boundaries",
        within="StopRules._first_stop_string",
        old="            start = text.find(stop, max(0, len(before) - len(stop) + 1))\n",
        new="            start = text.find(stop, len(before))\n",
        expected=("finish",),
        cells=("none.v1.pair.stop_string",),
        why="a stop string that starts in an earlier token is not found",
    ),
    Fault(
        id="stop-token-shown",
        klass=KLASS,
        origin="vllm#47616",
        within="StopRules.judge",
        old='            return Finish("stop", token)\n',
        new='            transcript.take(token)\n            return Finish("stop", token)\n',
        expected=("finish",),
        cells=("none.v1.pair.stop_token",),
        why="the stop token's text is returned",
    ),
    Fault(
        id="matched-lost",
        klass=METRIC,
        origin="sglang#21723",
        within="StopRules.judge",
        old='            return Finish("stop", token)\n',
        new='            return Finish("stop")\n',
        expected=("finish",),
        cells=("none.v1.pair.stop_token",),
        why="the finish reason does not name the stop token",
    ),
    Fault(
        id="detokenizer-swallows",
        klass="tokenizer",
        origin="transformers#46124",
        within="Detokenizer.push",
        old="            self._shown = self._tokenizer.decode(self._ids[self._window :])\n",
        new="            self._shown = self._tokenizer.decode(self._ids)\n",
        expected=("finish",),
        cells=("none.v1.pair.stop_string",),
        why="text is lost where the detokenizer's window moves",
    ),
    Fault(
        id="text-of-first-token",
        klass="tokenizer",
        origin="sglang#25980: the boundary of accepted tokens taken for a token boundary",
        within="Loop._deliver",
        old="            finish = rules.judge(token, len(output), transcript)\n",
        new=(
            "            inside = StopRules(rules.stop_ids, (), rules.max_new_tokens)\n"
            "            nth = len(output) - shown\n"
            "            finish = (inside if 1 < nth < count else rules).judge(token, len(output), transcript)\n"
        ),
        expected=("finish",),
        cells=("eagle3.s5.v2.p4.ragged.stop_string",),
        why="stop strings are searched only at the first and last of a round's accepted tokens",
    ),
    Fault(
        id="rate-above-one",
        klass=METRIC,
        origin="sglang#11572",
        within="SpecMetrics.count",
        old="        self.correct += drafts\n",
        new="        self.correct += accepted\n",
        expected=("finish",),
        cells=("standalone.pair",),
        why="the numerator of spec_accept_rate includes the bonus token",
    ),
    Fault(
        id="accept-length-excludes-bonus",
        klass=METRIC,
        origin="sglang#18483, vllm#42508",
        within="SpecMetrics.meta_info",
        old='            "spec_accept_length": completion_tokens / self.verify_ct,\n',
        new='            "spec_accept_length": self.correct / self.verify_ct,\n',
        expected=("finish",),
        cells=("standalone.pair",),
        why="spec_accept_length is computed from the correct drafts instead of the completion tokens",
    ),
    Fault(
        id="logprobs-once-per-round",
        klass="logprob",
        origin="sglang#14046, sglang#10660",
        within="Loop._note_logprobs",
        old="            request.logprobs.extend(result.logprobs[index][:taken])\n",
        new="            request.logprobs.extend(result.logprobs[index][:1])\n",
        expected=("finish",),
        cells=("standalone.pair.temperature",),
        why="only the first token of a round gets a log-probability",
    ),
    Fault(
        id="logprobs-of-the-rounds-end",
        klass="logprob",
        origin="sglang#17373",
        within="Loop._note_logprobs",
        old="            request.logprobs.extend(result.logprobs[index][:taken])\n",
        new="            request.logprobs.extend(result.logprobs[index][-taken:])\n",
        expected=("lossless",),
        cells=("eagle3.s5.v2.p4.pair.stream", "eagle3.s3.k4.n8.v2.p16.snug.pair.stream.length"),
        why="a partly accepted round reports the right number of log-probabilities, but those of its last positions",
    ),
    Fault(
        id="plain-decoding-reports-drafts",
        klass=METRIC,
        origin="rule: where nothing is drafted, no metric of speculation is reported",
        within="SpecMetrics.meta_info",
        old="        if not self.proposed:\n",
        new="        if not self.verify_ct:\n",
        expected=("finish",),
        cells=("none.pair",),
        why="plain decoding reports 0 accepted of 0 proposed drafts, and a rate",
        also=(Edit("SpecMetrics.meta_info", "self.correct / self.proposed", "self.correct / max(1, self.proposed)"),),
    ),
    Fault(
        id="metrics-restart-after-retraction",
        klass=METRIC,
        origin="sglang#18984: a retracted request starts over",
        within="Scheduler._release",
        old="            request.retractions += 1\n",
        new="            request.retractions += 1\n            request.metrics = type(request.metrics)()\n",
        expected=("finish",),
        cells=("none.v1.nocache.c7.tight.pair",),
        why="a retracted request forgets its rounds, so its metrics cover the end of its output only",
    ),
    Fault(
        id="rounds-counted-behind-an-abort",
        klass=METRIC,
        origin="sglang#23456: an aborted request's round is counted",
        within="Scheduler.abort",
        old='        self.end(request, Finish("abort"))\n',
        new='        self.end(request, Finish("abort"))\n        request.metrics.count(2, self.width)\n',
        expected=("finish",),
        cells=("eagle3.s3.k2.n6.v2.p64.nocache.ragged.abort_running",),
        why="an aborted request reports tokens of a round that were not delivered",
    ),
    Fault(
        id="overshoot-counts-requests",
        klass="metric misreport",
        origin="rule: a counter of tokens counts tokens",
        within="StepCounter._count_finish",
        old='        self._hit("finish.overshoot", overshoot)\n',
        new='        self._hit("finish.overshoot", overshoot > 0)\n',
        expected=("finish",),
        cells=("standalone.pair", "dflash.pair"),
        why="the counter of tokens accepted behind an end counts the requests that have some",
    ),
)
