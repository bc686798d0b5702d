"""Per-request speculative metrics with SGLang's keys (`meta_info`)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SpecMetrics:
    """Counts over processed verify rounds; a round still in flight at the finish is not counted.

    `correct` excludes the bonus token, `emitted` includes it. `histogram[d]` counts rounds with d accepted drafts.
    `lengths` and `widths` hold each round's tokens, bonus included, and the nodes that it verified. `outside`: indices
    of the output tokens that no round emitted, but prefill steps.
    """

    verify_ct: int = 0
    correct: int = 0
    proposed: int = 0
    emitted: int = 0
    histogram: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)

    def count(self, accepted: int, width: int) -> None:
        """One verify round: `accepted` tokens including the bonus, `width` verified nodes including the root."""
        drafts = accepted - 1
        self.verify_ct += 1
        self.correct += drafts
        self.proposed += width - 1
        self.emitted += accepted
        if drafts >= len(self.histogram):
            self.histogram.extend([0] * (drafts + 1 - len(self.histogram)))
        self.histogram[drafts] += 1
        self.lengths.append(accepted)
        self.widths.append(width)

    def meta_info(self, completion_tokens: int) -> dict[str, object]:
        """SGLang's keys. Empty without verify rounds that proposed drafts.

        spec_accept_length = completion_tokens / spec_verify_ct (the token from prefill counts, so it is slightly above
        the mean acceptance length); spec_accept_rate = correct drafts / verified drafts. The histograms count rounds by
        accepted and by verified drafts: a chain's draft j was verified in the rounds of the latter from j on.
        """
        if not self.proposed:
            return {}
        return {
            "spec_verify_ct": self.verify_ct,
            "spec_accept_length": completion_tokens / self.verify_ct,
            "spec_accept_rate": self.correct / self.proposed,
            "spec_num_correct_drafts": self.correct,
            "spec_num_proposed_drafts": self.proposed,
            "spec_correct_drafts_histogram": list(self.histogram),
            "spec_verified_drafts_histogram": [self.widths.count(nodes) for nodes in range(1, max(self.widths) + 1)],
        }
