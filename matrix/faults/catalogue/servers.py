"""What a client of a server sees: metrics that are missing or contradict each other, texts that are not the tokens'.

The cells run over HTTP, each on a server of the patched engine.
"""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

METRIC: Final = "metric misreport"
CELL: Final = ("eagle3.s3.k1.n4.p4.pair",)

SERVER_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="proposed-drafts-with-the-root",
        klass=METRIC,
        origin="sglang#33518: identities between the metrics of speculation",
        within="SpecMetrics.meta_info",
        old='            "spec_num_proposed_drafts": self.proposed,\n',
        new='            "spec_num_proposed_drafts": self.proposed + self.verify_ct,\n',
        expected=("identities",),
        cells=CELL,
        why="the number of proposed drafts counts each round's root, unlike the rate",
        subject="sglang",
    ),
    Fault(
        id="histogram-of-the-first-rounds",
        klass=METRIC,
        origin="sglang#33518: identities between the metrics of speculation",
        within="SpecMetrics.count",
        old="        self.histogram[drafts] += 1\n",
        new="        self.histogram[drafts] = min(self.histogram[drafts] + 1, 3)\n",
        expected=("identities",),
        cells=CELL,
        why="the histogram stops counting at three rounds of a kind",
        subject="sglang",
    ),
    Fault(
        id="metrics-withheld",
        klass=METRIC,
        origin="rule: a claimed metric is delivered",
        within="SpecMetrics.meta_info",
        old="        if not self.proposed:\n",
        new="        if self.proposed is not None:\n",
        expected=("claims",),
        cells=CELL,
        why="answers lack the metrics of speculation, so nothing shows that it ran",
        subject="sglang",
    ),
    Fault(
        id="first-token-worst",
        klass="sampling distribution",
        origin="rule: plain decoding equals the target's own, whatever it is compared with",
        within="DeviceStep._prefill",
        old="        sampled = self.ranks.agreed(pick(logits, end[:, None], rows))\n",
        new="        sampled = self.ranks.agreed(pick(-logits, end[:, None], rows))\n",
        expected=("oracle",),
        cells=CELL,
        why="the first token is the least likely one, with and without drafts",
        subject="sglang",
    ),
    Fault(
        id="completion-text-stripped",
        klass="tokenizer",
        origin="rule: a completion's text is that of its tokens",
        within="Answering.text",
        old="            return text\n",
        new="            return text.strip()\n",
        expected=("text",),
        cells=("eagle3.pair",),
        why="a completion loses the white space at its ends",
        subject="openai",
    ),
)
