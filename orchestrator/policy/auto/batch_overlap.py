"""How sessions that share a verifier meet in its forwards: by chance, or because they move together."""

import math

from orchestrator.policy.auto.fit import Mean

MOST_SHARE = 0.9
"""Of its time that a session is in forwards. Where it hardly ever leaves them nobody sees who leaves together, and what
was seen before was of other rounds: all count as apart."""


def share_running(share: float, groups: float) -> float:
    """Return for which share of the time a forward runs, if each of so many groups is in one for ``share`` of it."""
    return float(1 - max(1 - share, 0.0) ** groups)


def groups_of(share: float, running: float) -> float:
    """Return ``share_running`` the other way round: as many groups as one likes where a forward always runs."""
    return math.log1p(-running) / math.log1p(-share) if running < 1 else math.inf


class BatchOverlap:
    """Learns in how many groups sessions come and go.

    Args:
        half_life: in verdicts of each session.
    """

    def __init__(self, half_life: float) -> None:
        self._cycle_us, self._turn_us, self._busy_us = Mean(half_life), Mean(half_life), Mean(half_life)

    def add(self, turn_us: float, cycle_us: float, batch: int, sessions: int, weight: float = 1.0) -> None:
        """Take a verdict in.

        Args:
            turn_us: its forward, and what the verifier takes besides.
            cycle_us: since the verdict before it.
            batch: how many sessions were in the forward, of so many ``sessions``.
            weight: of this verdict among those of all sessions.
        """
        self._turn_us.add(turn_us, weight=weight)
        self._cycle_us.add(max(cycle_us, turn_us), weight=weight)
        # A forward of half the sessions is told of by half of the verdicts: theirs.
        apart_us = sessions * self._turn_us.value
        self._busy_us.add(turn_us * sessions / batch, within=apart_us, weight=weight)

    def groups(self, sessions: int) -> float:
        """Return how many there are among so many sessions."""
        cycle_us = max(self._cycle_us.value, 1.0)
        share = self._turn_us.value / cycle_us
        if not 0 < share <= MOST_SHARE:
            return float(sessions)
        return min(max(groups_of(share, self._busy_us.value / cycle_us), 1.0), float(sessions))
