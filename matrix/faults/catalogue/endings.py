"""Stops, limits, texts and the numbers that are reported with them."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

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
        why="a run that crosses the limit ends as length, though a stop stands inside it",
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
        why="the tokens accepted behind a stop are shown",
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
        why="one token more than the limit is produced",
    ),
    Fault(
        id="context-ends-a-draft-early",
        klass="off-by-one length or KV position",
        origin="rule: a request may reach the last position of the context, whatever drafts are written past it",
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
        why="a request ends where the next round's drafts would reach past the context",
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
        why="the stop string stays in the text",
    ),
    Fault(
        id="stop-string-split-missed",
        klass=KLASS,
        origin="sglang#28802: stop strings over token borders",
        within="StopRules._first_stop_string",
        old="            start = text.find(stop, max(0, len(before) - len(stop) + 1))\n",
        new="            start = text.find(stop, len(before))\n",
        expected=("finish",),
        cells=("none.v1.pair.stop_string",),
        why="a stop string that begins in an earlier token is not found",
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
        why="the text of the stop token is shown",
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
        why="a request does not say which token ended it",
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
        why="text is lost where the window of the detokenizer moves",
    ),
    Fault(
        id="text-of-first-token",
        klass="tokenizer",
        origin="sglang#25980: the boundary of a run taken for that of a token",
        within="Loop._deliver",
        old="            finish = rules.judge(token, len(output), transcript)\n",
        new=(
            "            inside = StopRules(rules.stop_ids, (), rules.max_new_tokens)\n"
            "            nth = len(output) - shown\n"
            "            finish = (inside if 1 < nth < count else rules).judge(token, len(output), transcript)\n"
        ),
        expected=("finish",),
        cells=("eagle3.s5.v2.p4.ragged.stop_string",),
        why="stop strings are searched at the ends of accepted runs only",
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
        why="the numerator of the acceptance rate counts the bonus token",
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
        why="the accept length is computed from another numerator than the one it is named after",
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
        why="only the first token of a round gets its log-probability",
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
        why="a round that was not accepted whole reports as many log-probabilities as are due, of its last places",
    ),
)
