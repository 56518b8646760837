"""The statistics of a request, and what only a measurement reads of its rounds."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Self

from orchestrator.decode.request import GenerationStats
from specgate.types import RoundRecord


@dataclass(slots=True)
class MeasuredStats(GenerationStats):
    """See ``GenerationStats``. Times are microseconds.

    - ``batch_widths``: verdicts by the number of sessions that shared their forward pass.
    - ``draft_lengths``: tokens proposed, one entry per round.
    - ``solo_us``: verifier time of each verdict without a proposal.
    - ``forwards_us``: rows and time of the target's forward pass for each verdict.
    """

    batch_widths: Counter[int] = field(default_factory=Counter)
    draft_lengths: list[int] = field(default_factory=list)
    solo_us: list[int] = field(default_factory=list)
    forwards_us: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, stats: GenerationStats, records: Iterable[RoundRecord]) -> Self:
        """Return the statistics of a request with these rounds; without them where they stay on a server."""
        measured = cls(**{one.name: getattr(stats, one.name) for one in fields(stats)})
        for record in records:
            measured._measure(record)
        return measured

    def _measure(self, record: RoundRecord) -> None:
        verdict, length = record.verdict, len(record.proposal)
        if verdict.batch_sessions:
            self.batch_widths[verdict.batch_sessions] += 1
        if verdict.num_emitted:
            self.forwards_us.append((length + 1, verdict.forward_us or verdict.verify_us))
        if record.undrafted:
            self.solo_us.append(verdict.verify_us)
        else:
            self.draft_lengths.append(length)
