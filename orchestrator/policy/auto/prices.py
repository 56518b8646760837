"""The prices of one moment, and what follows from them where sessions share the verifier."""

from typing import NamedTuple

from orchestrator.policy.auto.batch_overlap import share_running
from orchestrator.policy.auto.forwards import ForwardPrices
from orchestrator.policy.auto.preparing import Preparing


class Prices(NamedTuple):
    """The costs of this moment, in microseconds; ``sessions`` is how many share the verifier.

    A solo token takes ``solo_us`` besides its forward; where sessions share the verifier, so does a round. A lone
    session's takes ``alone_us`` where nothing is drafted: a drafter that works beside it takes time from the cores and
    the memory that both use. A round behind such tokens takes ``catch_up_us`` more: the drafter has them to read.
    A round waits ``wait`` forwards before its own one where no other session is there; else see ``wait_us``.
    It waits ``overhead_us`` for the network and the loop, or ``there_us`` where it need not ask the drafter for what it
    uses; a draft takes ``draft_us`` and ``token_us`` for each token. One that is prepared has a lead of ``lead_us``,
    give or take ``jitter_us`` (see ``Preparing``), if the drafter ``prepares`` at all.
    Sessions that were in one forward tend to be in the next one together: they meet as often as so many ``groups``
    would that know nothing of each other, from 1 to as many as there are sessions.
    """

    forwards: ForwardPrices
    solo_us: float
    wait: float
    overhead_us: float
    draft_us: float
    token_us: float
    sessions: int
    groups: float
    alone_us: float
    catch_up_us: float = 0.0
    there_us: float = 0.0
    lead_us: float = 0.0
    jitter_us: float = 1.0
    prepares: bool = False

    def batch(self, share: float) -> float:
        """Return how many sessions are in a forward on average, each being in one for a ``share`` of its time, above 0.

        In the time that some forward runs as many are in it as make up the shares of all sessions (Little, 1961).
        """
        return min(self.sessions * share / share_running(share, self.groups), self.sessions)

    def wait_us(self, away_us: float, turn_us: float, share: float) -> float:
        """Return what a round waits for others' turn before its own, ``away_us`` after the one before it ended.

        A turn is a forward and what the verifier takes besides. Others began theirs when it left: it waits for the rest
        of that one, but not for less than half of one, since who is away for longer comes at any moment. If there is
        only its own group it waits for nobody.

        Args:
            share: of its time that each session is in such a turn.
        """
        others = share_running(share, self.groups - 1)
        return others * max(turn_us - away_us, turn_us / 2)

    def forward(self, rows: float, sessions: float = 1.0, lone_us: float | None = None) -> float:
        """Return what a forward of ``rows`` takes (see ``ForwardPrices``)."""
        return self.forwards.forward(rows, sessions, lone_us)

    def asked(self, gamma: int, longest: int = 0) -> float:
        """Return what a round takes, besides its forward and the wait before it, if ``gamma`` tokens are asked for.

        Args:
            longest: how many tokens are prepared, in vain: a forward that has begun is waited for.
        """
        held_up_us = self._preparing.held_up(0, longest) if self.prepares else 0.0
        return held_up_us + self.draft_us + self.token_us * gamma + self.overhead_us

    def begun(self, gamma: int, longest: int = 0) -> float:
        """Return the same where the draft was begun while the target judged as long a one.

        Args:
            longest: how many tokens are prepared, if more: only then the drafter tells of them.
        """
        longest = max(gamma, longest)
        told = 1 - self._preparing.is_busy(longest, longest)
        return told * self.there_us + (1 - told) * self.overhead_us + self._preparing.held_up(gamma, longest)

    @property
    def _preparing(self) -> Preparing:
        return Preparing(self.token_us, self.forwards.row_us, self.lead_us, self.jitter_us)
