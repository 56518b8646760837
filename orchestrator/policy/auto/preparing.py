"""What a drafter that works ahead has done by the time when it is asked."""

import math
from typing import NamedTuple

MOST_JITTERS = 30.0


class Preparing(NamedTuple):
    """How far a drafter has come with what it prepares, when the round is there that it is for.

    A token takes ``token_us``. The first one is begun ``lead_us`` before that, and ``row_us`` sooner for each draft
    token that is judged meanwhile. The lead is not always the same: it is taken to be logistic, with ``jitter_us`` as
    its scale.
    """

    token_us: float
    row_us: float
    lead_us: float
    jitter_us: float

    def held_up(self, gamma: int, longest: int) -> float:
        """Return for how long, on average, a round waits for the first ``gamma`` of ``longest`` tokens.

        If they are there, and the drafter is busy with a further one, the round waits for that one's forward.
        """
        busy = (self.is_busy(num_tokens, longest) for num_tokens in range(gamma, longest))
        # Of what is not begun yet nobody waits for anything.
        unbegun_us = 0.0 if gamma else self._wait_us(0, longest)
        return max(self._wait_us(longest, longest) - self.token_us * sum(busy) - unbegun_us, 0.0)

    def is_busy(self, num_tokens: int, longest: int) -> float:
        """Return the chance that not all of the first so many tokens are there."""
        return 1 / (1 + math.exp(-in_jitters(self._late_us(num_tokens, longest), self.jitter_us)))

    def _wait_us(self, num_tokens: int, judged: int) -> float:
        """Return for how long, on average, a round would wait for the first so many tokens."""
        late_us = self._late_us(num_tokens, judged)
        # With no limit upwards: what is far too late is waited for in full.
        return max(late_us, self.jitter_us * math.log1p(math.exp(in_jitters(late_us, self.jitter_us))))

    def _late_us(self, num_tokens: int, judged: int) -> float:
        """Return by how much the first so many tokens are too late, at an average lead."""
        return self.token_us * num_tokens - self.row_us * judged - self.lead_us


def in_jitters(us: float, jitter_us: float) -> float:
    """Return ``us`` in jitters, within what exponentials can bear."""
    return min(max(us / jitter_us, -MOST_JITTERS), MOST_JITTERS)
