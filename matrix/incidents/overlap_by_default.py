"""sglang#21062: spec v2 becomes the default; trees fall back to v1 where they were refused."""

from typing import Final

from specmatrix.matrix.faults.patch import Edit
from specmatrix.matrix.incidents import fallback
from specmatrix.matrix.incidents.incident import CodeState, ComparedStep, Expected, Incident, each
from specmatrix.reports.compare import Acknowledgement

OPT_IN: Final = CodeState(
    "v2 is opt-in",
    (
        Edit(
            "DEFAULTS",
            'lambda s: "v2", "overlap scheduling is the default", TIMING_GATES',
            'lambda s: "v1", "steps run synchronously by default", TIMING_GATES',
        ),
        Edit(
            "DEFAULTS",
            '        lambda s: 48,\n        "speculation defaults to 48 running requests (sglang#21062); set ',
            '        lambda s: 64,\n        "speculation defaults to 64 running requests; set ',
        ),
        *fallback.REFUSED,
    ),
)
FLIPPED: Final = CodeState("v2 by default", fallback.REWRITTEN)
# Chains that leave the timing to the default.
AUTOMATIC: Final = ("standalone.pair", "eagle3.s3.pair", "eagle3.s3.k1.n4.p4.pair")
AUTOMATIC_TREE: Final = "eagle3.s3.k4.n8.pair"
ASKED: Final = ("eagle3.s3.k1.n4.v1.pair", "eagle3.s3.sync.pair")
ASKED_V2: Final = "eagle3.s3.v2.pair"
ASKED_TREE: Final = "eagle3.s3.k4.n8.v2.pair"
CELLS: Final = (*AUTOMATIC, AUTOMATIC_TREE, *ASKED, ASKED_V2, ASKED_TREE)
EXPIRY: Final = "2099-12-31"
# What changes for users: signatures of the comparison, and the reason that the author gives.
DEPARTURES: Final = {
    "moved spec_version: v1 -> v2": "overlap is the default now",
    "moved max_running_requests: 64 -> 48": "two steps are in flight",
    "moved engine start: refused -> runs": "trees on v2 run as v1",
    "new spec_version: v2 -> v1": "the overlap worker drafts chains",
}
LOST: Final = ("algorithm=standalone x spec_version=v1", "page_size=4 x spec_version=v1")
GAINED: Final = ("algorithm=standalone x spec_version=v2", "page_size=4 x spec_version=v2")
LEFT: Final = ("spec_version=v1 x algorithm=standalone", "spec_version=v1 x page_size=4", "slots=64 x topk=1")


def _verdict(verdict: str, departures: str) -> Expected:
    return Expected(
        verdict,
        cells=each("REWRITTEN", *CELLS),
        rewrites=dict.fromkeys(DEPARTURES, departures),
        lost_pairs=LOST,
        gained_pairs=GAINED,
        by_default=LEFT,
    )


INCIDENT: Final = Incident(
    name="overlap-by-default",
    origins=("sglang#21062",),
    question="What runs on another path when v2 becomes the default, and what was refused before?",
    steps=(
        ComparedStep(
            name="flip",
            story="v2 is the default, speculation runs at most 48 requests, and a tree on v2 falls back to v1 where it "
            "was refused.",
            base=OPT_IN,
            head=FLIPPED,
            cells=CELLS,
            expected=_verdict("red", "red"),
        ),
        ComparedStep(
            name="acknowledged",
            story="The same change, with each departure declared and a reason given.",
            base=OPT_IN,
            head=FLIPPED,
            cells=CELLS,
            acknowledged=tuple(
                Acknowledgement("rewrite", signature.partition(" ")[2], reason, EXPIRY)
                for signature, reason in DEPARTURES.items()
            ),
            expected=_verdict("green", "acknowledged"),
        ),
        ComparedStep(
            name="clean-up",
            story="Tests that requested v2 are removed, since v2 is the default now.",
            base=FLIPPED,
            head=FLIPPED,
            cells=tuple(cell for cell in CELLS if cell != ASKED_V2),
            dropped=(ASKED_V2,),
            expected=Expected("red", cells=each("LOST", ASKED_V2)),
        ),
    ),
)
