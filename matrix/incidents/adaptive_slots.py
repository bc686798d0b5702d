"""sglang#24055: adaptive steps by batch size; a new file format, and the defects that review and users feared."""

from typing import Final

from specmatrix.matrix.faults.patch import Edit
from specmatrix.matrix.incidents.incident import Asked, AskedStep, CodeState, ComparedStep, Expected, Incident, each

# One average for all batch sizes, in a file without them (sglang#21599).
ONE_SLOT: Final = CodeState(
    "one slot for every batch size",
    (
        Edit(
            "parse",
            "    if not sizes:\n",
            "    if sizes:\n"
            "        allowed = ', '.join(KEYS)\n"
            '        raise ConfigError(f"{SOURCE}: unknown key {shown(sizes[0])}; a key must be one of {allowed}")\n'
            "    if not sizes:\n",
        ),
        Edit("DEFAULT_TEXT", "dump(DEFAULT_SLOTS)", "'{\"candidate_steps\": [1, 3, 7]}'"),
        Edit("ADAPTING", "broken=lambda s: s.adaptive is not None and s.adaptive.flat", "broken=lambda s: False"),
        Edit(
            "CONSTRAINTS",
            '    _lifted("adaptive-config-flat", "algorithm", "topk", "adaptive"),\n',
            '    _lifted("adaptive-config-wrong", "algorithm", "topk", "adaptive"),\n',
        ),
    ),
)
TODAY: Final = CodeState("a slot for each range of batch sizes")
OFF_BY_ONE: Final = CodeState(
    "boundaries one too high",
    (Edit("DraftSteps._slot", "bisect_right(self._bounds, batch_size)", "bisect_right(self._bounds, batch_size - 1)"),),
)
SHARED: Final = CodeState(
    "one average for all slots",
    (
        Edit(
            "DraftSteps.observe",
            "        decision = slot.observe(mean)\n",
            "        decision = slot.observe(mean)\n"
            "        for other in self.slots:\n"
            "            other.ema = slot.ema\n",
        ),
    ),
)
UNLISTED: Final = CodeState(
    "any initial depth is taken",
    (Edit("_foreign", "s.adaptive is not None and", "False and"),),
)
PRUNED: Final = CodeState(
    "widths of the first slot only",
    (
        Edit(
            "DraftSteps.__init__",
            "width or union(slots)[-1] + 1",
            "width or slots[0].candidate_steps[-1] + 1",
        ),
    ),
)
FLAT: Final = "eagle3.flat.v2"
TIERS: Final = "eagle3.tiers.v2.ragged"
TABLE: Final = "eagle3.table.v2"
FOREIGN: Final = "eagle3.s5.tiers.v2.ragged"
CHAIN: Final = "eagle3.s3.v2"
STARTS: Final = "moved engine start: refused -> runs"
SOURCE: Final = "speculative_adaptive_config"
KEYS: Final = (
    "candidate_steps, ema_alpha, update_interval, warmup_batches, down_hysteresis, up_hysteresis, ceiling_coeff, "
    "strategy"
)


def _defect(name: str, story: str, head: CodeState, says: str, cell: str = TIERS) -> ComparedStep:
    expected = Expected("red", cells=each("REGRESSED: adaptive", cell), says=(says,))
    return ComparedStep(name=name, story=story, base=TODAY, head=head, cells=(CHAIN, cell), expected=expected)


INCIDENT: Final = Incident(
    name="adaptive-slots",
    origins=("sglang#24055",),
    question="Which files, depths and widths change when each range of batch sizes gets its own slot?",
    steps=(
        ComparedStep(
            name="format",
            story="A file may list slots by batch size, and so does the default table. A file in the old format works.",
            base=ONE_SLOT,
            head=TODAY,
            cells=(CHAIN, FLAT, TIERS, TABLE),
            expected=Expected(
                "red",
                cells=each("REWRITTEN", FLAT, TIERS, TABLE),
                rewrites={
                    "new speculative_adaptive_config: *": "red",
                    "moved adaptive_slots: *": "red",
                    STARTS: "red",
                },
                gained_pairs=("adaptive=tiers x algorithm=eagle3",),
            ),
        ),
        AskedStep(
            name="files",
            story="Valid and invalid files in the old and the new format, and an initial depth that no slot lists.",
            asked=(
                Asked({SOURCE: '{"candidate_steps": [1, 3]}'}),
                Asked({SOURCE: '{"1": {"candidate_steps": [1, 3, 7]}, "8": {"candidate_steps": [1]}}'}),
                Asked(
                    {SOURCE: '{"candidate_steps": [0, 3]}'},
                    f"{SOURCE}: candidate_steps must be a list of one or more integers from 1 to 255, got [0, 3]",
                ),
                Asked(
                    {SOURCE: '{"1": {"candidate_steps": [1]}, "08": {"candidate_steps": [1]}}'},
                    f"{SOURCE} has the batch size '08'; it must be an integer of 1 to 9 digits "
                    "without sign or leading zeros",
                ),
                Asked(
                    {SOURCE: '{"1": {"candidate_step": [1, 3]}}'},
                    f"{SOURCE}: slot 1: unknown key 'candidate_step' (did you mean 'candidate_steps'?); "
                    f"a key must be one of {KEYS}",
                ),
                Asked({SOURCE: '{"1": {"candidate_steps": [1, 3]'}, f"{SOURCE} is not JSON: "),
                Asked(
                    {SOURCE: '{"1": {"candidate_steps": [1, 3]}}', "speculative_num_steps": 2},
                    "speculative_num_steps 2 is not a candidate of any adaptive slot; use auto or one of 1, 3",
                ),
            ),
        ),
        _defect(
            "boundary",
            "The smallest batch size of each slot is counted in the slot below.",
            OFF_BY_ONE,
            "round 21 of 2 requests has width 4; slot 2 is at 2 steps",
        ),
        _defect("average", "All slots share one average.", SHARED, "expected 1.75 from the slot's rounds"),
        ComparedStep(
            name="initial",
            story="An initial depth that is not a candidate of any slot is accepted; it was refused before.",
            base=TODAY,
            head=UNLISTED,
            cells=(CHAIN, FOREIGN),
            expected=Expected("red", cells=each("REWRITTEN", FOREIGN), rewrites={STARTS: "red"}),
        ),
        ComparedStep(
            name="pruned",
            story="Only the widths that the first slot can reach are prepared.",
            base=TODAY,
            head=PRUNED,
            cells=(CHAIN, TIERS),
            expected=Expected(
                "red",
                cells=each(
                    "REGRESSED: config, effective, ledger, work, rest, adaptive, lossless, finish, acceptance", TIERS
                ),
                says=("would write 5 positions",),
            ),
        ),
    ),
)
