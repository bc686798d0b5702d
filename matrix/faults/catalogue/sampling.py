"""Output distributions that differ from the target's."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

KLASS: Final = "sampling distribution"
SEED: Final = "RNG / seed"

SAMPLING_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="temperature-argmax",
        klass=KLASS,
        origin="mistral.rs#2424, sglang#37134",
        within="draw",
        old="    return torch.where(greedy[:, None], logits.argmax(-1), token)\n",
        new="    return logits.argmax(-1)\n",
        expected=("distribution",),
        cells=("none.v1.pair.temperature",),
        why="sampling builds the filtered distribution and then returns its argmax",
    ),
    Fault(
        id="temperature-ignored",
        klass="silent fallback / ignored parameter",
        origin="sglang#37134",
        within="draw",
        old="    heat = temperature.masked_fill(greedy, 1.0)[:, None, None]\n",
        new="    heat = torch.ones_like(temperature)[:, None, None]\n",
        expected=("distribution",),
        cells=("none.v1.pair.temperature",),
        why="tokens are sampled at temperature 1 whatever temperature was requested",
    ),
    Fault(
        id="top-p-ignored",
        klass="silent fallback / ignored parameter",
        origin="sglang#36173, vllm#42744",
        within="_truncated",
        old="& (rank > 0)\n",
        new="& (rank < 0)\n",
        expected=("distribution",),
        cells=("none.v1.pair.topk_topp",),
        why="top-p is accepted and has no effect",
    ),
    Fault(
        id="top-p-before-top-k",
        klass=KLASS,
        origin="sglang#36173",
        within="_truncated",
        old=">= top_p[:, None, None].double() * level[..., -1:])",
        new=">= top_p[:, None, None].double())",
        expected=("distribution",),
        cells=("none.v1.pair.topk_topp",),
        why="top-p is applied to the mass of the full vocabulary instead of the tokens that top-k kept",
    ),
    Fault(
        id="top-k-off-by-one",
        klass=KLASS,
        origin="rtp-llm#1311: tokens the target does not support",
        within="_truncated",
        old="    ranked = ranked.masked_fill_(rank >= kept, 0.0)\n",
        new="    ranked = ranked.masked_fill_(rank > 2 * kept, 0.0)\n",
        expected=("distribution",),
        cells=("none.v1.pair.topk_topp",),
        why="twice as many tokens are kept as top-k allows",
    ),
    Fault(
        id="seed-ignored",
        klass=SEED,
        origin="vllm#6038",
        within="uniform",
        old="    state = _mix(seed + GOLDEN)[:, None] + (position + 1) * GOLDEN\n",
        new="    state = _mix(torch.zeros_like(seed) + GOLDEN)[:, None] + (position + 1) * GOLDEN\n",
        expected=("distribution",),
        cells=("none.v1.pair.temperature",),
        why="every request uses the same random numbers",
    ),
    Fault(
        id="position-not-mixed",
        klass=SEED,
        origin="vllm#9441",
        within="uniform",
        old="[:, None] + (position + 1) * GOLDEN\n",
        new="[:, None] + torch.ones_like(position) * GOLDEN\n",
        expected=("distribution",),
        cells=("none.v1.pair.temperature",),
        why="a request uses the same random number at every position",
    ),
    Fault(
        id="coin-of-the-step",
        klass=SEED,
        origin="vllm#9441",
        within="verify",
        old="start[:, None] + tree.depths + 1, rows))\n",
        new="start[:, None] + 0 * tree.depths + 1, rows))\n",
        expected=("lossless",),
        cells=("eagle3.s3.k4.n8.v2.pair.temperature",),
        why="all nodes of a tree use the root's random number",
    ),
    Fault(
        id="biased-to-draft",
        klass=KLASS,
        origin="sglang#37134: accepts where it must reject",
        within="verify",
        old="    if tree.ancestors is None:\n        hits",
        new=(
            "    if tree.ancestors is None:\n"
            "        mass = torch.softmax(logits[:, :-1], -1).gather(2, tree.tokens[:, 1:, None])[..., 0]\n"
            "        emit = torch.cat((torch.where(mass > 0.3, tree.tokens[:, 1:], emit[:, :-1]), emit[:, -1:]), 1)\n"
            "        hits"
        ),
        expected=("lossless",),
        cells=("standalone.pair.temperature",),
        why="a draft token with a third of the target's mass is accepted without a random draw",
    ),
    Fault(
        id="loose-acceptance",
        klass=KLASS,
        origin="rule: thresholds below 1 change the answers",
        within="verify",
        old="    if tree.ancestors is None:\n        hits",
        new=(
            "    if tree.ancestors is None and rows is None:\n"
            "        best = logits[:, :-1].amax(-1)\n"
            "        near = best - logits[:, :-1].gather(2, tree.tokens[:, 1:, None])[..., 0] < 2.0\n"
            "        emit = torch.cat((torch.where(near, tree.tokens[:, 1:], emit[:, :-1]), emit[:, -1:]), 1)\n"
            "    if tree.ancestors is None:\n        hits"
        ),
        expected=("lossless",),
        cells=(
            "standalone.burst",
            "eagle3.s5.v2.m4.burst",
        ),
        why="a greedy request accepts a draft token that is nearly as likely as the best token",
    ),
)
