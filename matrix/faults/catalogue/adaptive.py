"""Adaptive steps: observations, a slot's decision, when a depth takes effect, memory for the widest round."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

STALE: Final = "stale or un-restored state"
OFF_BY_ONE: Final = "off-by-one length or KV position"
IGNORED: Final = "silent fallback / ignored parameter"

ADAPTIVE_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="adaptive-present-width",
        klass="stride / indexing",
        origin="sglang#23336",
        within="Loop._adapt",
        old="            self.scheduler.steps.observe(len(requests), plan.rows[0].width, live)\n",
        new="            self.scheduler.steps.observe(len(requests), self.scheduler.steps.steps + 1, live)\n",
        expected=("adaptive",),
        cells=("eagle3.tiers.v2.waves.length",),
        why="a result read one round late is counted with the current round's width",
    ),
    Fault(
        id="adaptive-present-batch",
        klass=STALE,
        origin="sglang#24055",
        within="Loop._adapt",
        old="            self.scheduler.steps.observe(len(requests), plan.rows[0].width, live)\n",
        new="            self.scheduler.steps.observe(len(self.scheduler.active), plan.rows[0].width, live)\n",
        expected=("adaptive",),
        cells=("eagle3.tiers.v2.m4.burst",),
        why="a result is counted for the slot of the batch size at the time it is read",
    ),
    Fault(
        id="adaptive-dropped-observed",
        klass=STALE,
        origin="sglang#23456",
        within="Loop._adapt",
        old="            live = [count - 1 for count, request in pairs if request.phase is Phase.RUNNING]\n",
        new="            live = [count - 1 for count, request in pairs]\n",
        expected=("adaptive",),
        cells=("eagle3.tiers.v2.p16.tight.ragged",),
        why="the extra round of a finished request changes the average of the running ones",
    ),
    Fault(
        id="adaptive-bonus-observed",
        klass="metric misreport",
        origin="sglang#21599",
        within="Loop._adapt",
        old="            live = [count - 1 for count, request in pairs if request.phase is Phase.RUNNING]\n",
        new="            live = [count for count, request in pairs if request.phase is Phase.RUNNING]\n",
        expected=("adaptive",),
        cells=("eagle3.tiers.v1.waves.length",),
        why="the bonus token counts as an accepted draft, so every slot drafts too deep",
    ),
    Fault(
        id="adaptive-narrow-reserve",
        klass="KV leak / over-allocation",
        origin="sglang#26354",
        within="Scheduler._decode_rows",
        old="            added = self._reserve(request, self.width)\n",
        new="            added = self._reserve(request, max(slot.steps for slot in self.steps.slots) + 1)\n",
        expected=("adaptive",),
        cells=("eagle3.tiers.v2.waves.length",),
        why="memory is reserved for the current depth instead of the deepest, so the reservation changes every round",
    ),
    Fault(
        id="adaptive-shared-average",
        klass=STALE,
        origin="sglang#24055",
        within="DraftSteps.observe",
        old="        decision = slot.observe(mean)\n",
        new=(
            "        decision = slot.observe(mean)\n"
            "        for other in self.slots:\n"
            "            other.ema = slot.ema\n"
        ),
        expected=("adaptive",),
        cells=("eagle3.tiers.v2.waves.length",),
        why="all slots share one average",
    ),
    Fault(
        id="adaptive-batch-one-short",
        klass=OFF_BY_ONE,
        origin="sglang#24055",
        within="DraftSteps._slot",
        old="        return self.slots[max(0, bisect_right(self._bounds, batch_size) - 1)]\n",
        new="        return self.slots[max(0, bisect_right(self._bounds, batch_size - 1) - 1)]\n",
        expected=("adaptive",),
        cells=("eagle3.table.v2.waves.length",),
        why="a slot's smallest batch size is assigned to the slot below",
    ),
    Fault(
        id="adaptive-hysteresis-dropped",
        klass=IGNORED,
        origin="sglang#21599",
        within="Slot._target",
        old="                if self.ema <= target - 0.5 + rule.up_hysteresis:\n",
        new="                if self.ema <= target - 0.5:\n",
        expected=("adaptive",),
        cells=("eagle3.tiers.v2.pair",),
        why="a slot increases its depth without the configured hysteresis",
    ),
    Fault(
        id="adaptive-warmup-ignored",
        klass=IGNORED,
        origin="sglang#21599",
        within="Slot.observe",
        old="        due = self.rounds - rule.warmup_batches\n",
        new="        due = self.rounds\n",
        expected=("adaptive",),
        cells=("eagle3.tiers.v1.waves.length",),
        why="the first rounds change the depth before the average is meaningful",
    ),
    Fault(
        id="adaptive-interval-short",
        klass=OFF_BY_ONE,
        origin="sglang#21599",
        within="Slot.observe",
        old="        if due % rule.update_interval:\n",
        new="        if due % max(1, rule.update_interval - 1):\n",
        expected=("adaptive",),
        cells=("eagle3.table.v2.burst",),
        why="the depth is decided one round too often",
    ),
    Fault(
        id="adaptive-activation-late",
        klass=STALE,
        origin="sglang#24055",
        within="DraftSteps.activate",
        old="        self._active, self._steps = slot, slot.steps\n",
        new="        late, self._active, self._steps = self._steps, slot, slot.steps\n",
        also=(
            Edit(
                "DraftSteps.activate",
                "        self.rounds.append(Activation(batch_size, self._steps + 1))\n        return self._steps + 1\n",
                "        self.rounds.append(Activation(batch_size, late + 1))\n        return late + 1\n",
            ),
        ),
        expected=("adaptive",),
        cells=("eagle3.tiers.v1.waves.length",),
        why="a new depth takes effect one round late",
    ),
    Fault(
        id="adaptive-flat-unread",
        klass="config parsing, weights, draft/target mix-up",
        origin="sglang#24055",
        within="parse",
        old='        return AdaptiveConfig((_slot("", 1, shared),), flat=True)\n',
        new="        return AdaptiveConfig(DEFAULT_SLOTS, flat=True)\n",
        expected=("adaptive", "config"),
        cells=("eagle3.flat.v2.pair",),
        why="a file in the flat format is ignored in favour of the default table",
    ),
    Fault(
        id="adaptive-ceiling-ignored",
        klass=IGNORED,
        origin="sglang#21599",
        within="Slot._capped",
        old="        if not self.settings.ceiling_coeff or target > self.steps:\n",
        new="        if target:\n",
        expected=("adaptive", "effective"),
        cells=("eagle3.tiers.v2.waves.length",),
        why="a depth above the ceiling is kept",
    ),
    Fault(
        id="adaptive-ceiling-on-a-rise",
        klass="wrong or flipped default",
        origin="sglang#21599",
        within="Slot._capped",
        old="        if not self.settings.ceiling_coeff or target > self.steps:\n",
        new="        if not self.settings.ceiling_coeff:\n",
        expected=("adaptive", "effective"),
        cells=("eagle3.tiers.v2.waves.length",),
        why="the ceiling also blocks increases, so a slot that decreased never increases again",
    ),
    Fault(
        id="adaptive-configured-width",
        klass="metric misreport",
        origin="sglang#18483 (under adaptive steps N is the configured value)",
        within="Loop._resolve_row",
        old="            request.metrics.count(count, row.width)\n",
        new="            request.metrics.count(count, self.scheduler.width)\n",
        expected=("adaptive", "finish"),
        cells=("eagle3.tiers.v2.waves.length",),
        why="every round reports the widest width",
    ),
    Fault(
        id="adaptive-stride-of-the-widest",
        klass="stride / indexing",
        origin="sglang#23331",
        within="AutoregressiveDrafter.absorb",
        old="        return self._extend(batch, verdict.tokens, aux, verdict.count)\n",
        new=(
            "        if aux is not None and aux.shape[1] < self.nodes:\n"
            "            aux = aux.roll(1, 0)\n"
            "        return self._extend(batch, verdict.tokens, aux, verdict.count)\n"
        ),
        expected=("acceptance",),
        cells=("eagle3.tiers.v2.ragged",),
        why="a narrower round's states are read with the widest round's stride, so from another request",
    ),
    Fault(
        id="adaptive-batch-held-small",
        klass=IGNORED,
        origin="sglang#24055 (each range of batch sizes must be met)",
        within="Scheduler._prefill_rows",
        old="        while budget and self.free_rows and self.waiting and self.admission.fits(self.waiting[0]):\n",
        new=(
            "        while budget and self.free_rows and self.waiting and self.admission.fits(self.waiting[0]):\n"
            "            if len(self.active) >= 24:\n"
            "                break\n"
        ),
        expected=("adaptive",),
        cells=("eagle3.tiers.v2.waves.length",),
        why="half of max_running_requests run together, so the slot for the largest batches is never used",
    ),
)
