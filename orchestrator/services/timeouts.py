"""How long the links wait until silence counts as death. All in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specgate.types import ForwardCost

LOADING_S = 600.0
"""How long the first verifier may take to be there: a large model takes minutes to load."""
TIMES_READ, TIMES_READ_AGAIN = 10.0, 2.0
"""How often a text could be read while its first answer is waited for, for other prompts may be before it; and while a
later one is: where pages are short they are given up, and the text is read again."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Waiting times of one orchestrator, in seconds, for short texts: see ``of_text``.

    A first answer includes a prefill and so has its own limit. Later, a draft may take ``draft_floor_s``, or ten times
    as long as the slowest draft or its own tokens took, but no longer than a first one. A verdict may take
    ``verdict_floor_s``, or twenty times as long as the slowest one. ``failover_s`` bounds the search for another
    verifier; ``failover_s`` plus ``open_s`` bounds the search for a request's first one. ``connect_drafter_s`` is short
    because a missing drafter is no error.
    """

    connect_s: float = 10.0
    connect_drafter_s: float = 3.0
    open_s: float = 10.0
    first_draft_s: float = 30.0
    draft_floor_s: float = 1.0
    first_verdict_s: float = 60.0
    verdict_floor_s: float = 5.0
    failover_s: float = 10.0

    def of_text(self, num_tokens: int, target: Sequence[ForwardCost], draft: Sequence[ForwardCost]) -> "Timeouts":
        """Return them for a text that gets so long, with the time that the services need to read it.

        Args:
            target, draft: forwards as the services measured them; () if unknown.
        """
        target_s, draft_s = _reading_s(target, num_tokens), _reading_s(draft, num_tokens)
        return replace(
            self,
            first_draft_s=self.first_draft_s + TIMES_READ * draft_s,
            draft_floor_s=self.draft_floor_s + TIMES_READ_AGAIN * draft_s,
            first_verdict_s=self.first_verdict_s + TIMES_READ * target_s,
            verdict_floor_s=self.verdict_floor_s + TIMES_READ_AGAIN * target_s,
        )


def _reading_s(costs: Sequence[ForwardCost], num_tokens: int) -> float:
    """Return the seconds that a text of so many tokens takes to read, by the widest forward half-way through it."""
    if not costs:
        return 0.0
    widest = costs[-1].at(num_tokens / 2)
    return num_tokens * widest.forward_us / widest.rows / 1e6
