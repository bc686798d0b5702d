"""DeepSeek-V3's MLA and MoE. Plain decoding has the same error, so only the transformers oracle detects it."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

MIXED_UP: Final = "config parsing, weights, draft/target mix-up"
IGNORED: Final = "silent fallback / ignored parameter"
ATTENTION: Final = "arXiv 2405.04434, section 2.1"
MIXTURE: Final = "arXiv 2412.19437, section 2.1.2"
PLAIN: Final = "none.deepseek.v2.p4.c7.ragged.mixed"

EXPERT_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="latent-unnormed",
        klass=MIXED_UP,
        origin=ATTENTION,
        within="MLALayer.attention",
        old="self.latent_norm.whole(latent, self.latent_scale)",
        new="latent",
        expected=("lossless",),
        cells=(PLAIN,),
        why="keys and values are computed from the latent before its norm",
    ),
    Fault(
        id="latent-scale-of-the-slot",
        klass=MIXED_UP,
        origin=ATTENTION,
        within="mla_layout",
        old="    scale = (c.plain_dim + c.rotated_dim) ** -0.5 * config.rope.score_factor\n",
        new="    scale = (c.rank + c.rotated_dim) ** -0.5 * config.rope.score_factor\n",
        expected=("lossless",),
        cells=(PLAIN,),
        why="attention scores are scaled by the width of a KV cache row instead of the query width",
    ),
    Fault(
        id="latent-turned-half-by-half",
        klass=MIXED_UP,
        origin="arXiv 2405.04434, section 2.1.3",
        within="MLALayer._paired",
        old="        return weight if self.config.interleaved else pair_up(weight, self.config.rotated_dim)\n",
        new="        return pair_up(weight, self.config.rotated_dim)\n",
        expected=("lossless",),
        cells=(PLAIN,),
        why="interleaved RoPE dimensions of the checkpoint are read as two halves",
    ),
    Fault(
        id="latent-heads-mixed-up",
        klass="stride / indexing",
        origin=ATTENTION,
        within="MLALayer.__init__",
        old="        made = made.view(self.heads, c.plain_dim + c.value_dim, c.rank)\n",
        new="        made = made.view(c.plain_dim + c.value_dim, self.heads, c.rank).transpose(0, 1)\n",
        expected=("lossless",),
        cells=(PLAIN,),
        why="the rows of kv_b_proj are grouped by element instead of by head",
    ),
    Fault(
        id="expert-groups-open",
        klass=IGNORED,
        origin=MIXTURE,
        within="MoE.weights",
        old="        if c.open_groups < c.groups:\n",
        new="        if c.open_groups > c.groups:\n",
        expected=("lossless",),
        cells=(PLAIN,),
        why="routing selects experts from every group",
    ),
    Fault(
        id="expert-bias-weighs",
        klass="stale or un-restored state",
        origin=MIXTURE,
        within="MoE.weights",
        old="        taken = scores.gather(1, chosen)\n",
        new="        taken = (scores + self.bias).gather(1, chosen)\n",
        expected=("lossless",),
        cells=(PLAIN,),
        why="the load-balancing bias, meant for expert selection only, is included in the expert weights",
    ),
    Fault(
        id="expert-shared-dropped",
        klass=IGNORED,
        origin=MIXTURE,
        within="MoE._add",
        old="        self.shared(x, h)\n",
        new="",
        expected=("lossless",),
        cells=(PLAIN,),
        why="the shared expert is left out",
    ),
    Fault(
        id="expert-scale-dropped",
        klass=IGNORED,
        origin=MIXTURE,
        within="MoE.weights",
        old="        return torch.zeros_like(scores).scatter_(1, chosen, taken * c.scale)\n",
        new="        return torch.zeros_like(scores).scatter_(1, chosen, taken)\n",
        expected=("lossless",),
        cells=(PLAIN,),
        why="the expert weights are not multiplied by the checkpoint's routed scaling factor",
    ),
)
