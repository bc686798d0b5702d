"""sglang#24999: hard-coded checks for algorithms become methods that a user's algorithm may override."""

from typing import Final

from specmatrix.matrix.faults.patch import Edit
from specmatrix.matrix.incidents.incident import CodeState, ComparedStep, ContractStep, Expected, Incident, each

TODAY: Final = CodeState("every algorithm has its hooks")
HARD_CODED: Final = CodeState(
    "the verify shape is for DFLASH",
    (
        Edit(
            "BuildContext.verify_tokens",
            "if not self.traits.target_verify_for_draft:",
            'if self.traits.name != "DFLASH":',
        ),
    ),
)
ONE_RELAY: Final = CodeState("one relay for all", (Edit("build_relay", "RELAYS.get(traits.name)", "None"),))
# The refactoring builds the relay before it knows the algorithm, so no draft state is carried.
NOT_CARRIED: Final = CodeState(
    "the relay is built without its algorithm",
    (
        Edit(
            "Relay.stash",
            "            scatter(buffer, rows, state[name])\n",
            '            scatter(buffer, rows, state[name] if name != "hidden" else state[name] * 0)\n',
        ),
    ),
)
PLAIN: Final = "none.v2.pair"
HEADS: Final = ("eagle3.s3.v2.pair", "eagle.s3.k1.n4.v2.pair")

INCIDENT: Final = Incident(
    name="extension-points",
    origins=("sglang#24999",),
    question="Does a third-party algorithm get what its hooks promise, and does a faulty one fail alone?",
    steps=(
        ContractStep(
            name="overrides",
            story="An algorithm overrides each hook: the target's verify shape, the relay, the check.",
            file="every_hook.py",
            state=TODAY,
        ),
        ContractStep(
            name="lies",
            story="An algorithm reads tokens on the host, although its traits say that it does not.",
            file="liar.py",
            state=TODAY,
            violated="read a tensor on the host (Tensor.tolist) in propose without the trait reads_host",
        ),
        ContractStep(
            name="forgets",
            story="An algorithm's relay function lacks the device argument.",
            file="forgetful.py",
            state=TODAY,
            refused="TypeError: relay() takes 2 positional arguments but 3 were given",
        ),
        ContractStep(
            name="hard-coded",
            story="The engine still grants the verify shape to DFLASH alone.",
            file="every_hook.py",
            state=HARD_CODED,
            refused="the draft of EVERY_HOOK may not use the target's verify shape; its traits need "
            "target_verify_for_draft",
        ),
        ContractStep(
            name="one-relay",
            story="The engine builds its own relay even if the algorithm has one.",
            file="every_hook.py",
            state=ONE_RELAY,
            violated="the drafter of EVERY_HOOK proposed a token outside the vocabulary",
        ),
        ComparedStep(
            name="refactoring",
            story="The relay is built without its algorithm, so it does not carry the draft's hidden states.",
            base=TODAY,
            head=NOT_CARRIED,
            cells=(PLAIN, *HEADS),
            expected=Expected("red", cells=each("REGRESSED: acceptance", *HEADS)),
        ),
    ),
)
