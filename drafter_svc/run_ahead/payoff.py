"""Whether guessing pays for a session, in forwards of the draft model."""

_FORGET = 0.95
"""What a round counts after the next one."""
_CREDIT = 8.0
"""Forwards that may be lost before guessing is thought to be no use."""
TRIAL = 8
"""Where it does not pay, one round in so many is guessed all the same: what comes next may be easier."""


class Payoff:
    """Forwards that prepared drafts saved, less those that drafts waited for because guesses were still running."""

    def __init__(self) -> None:
        self._forwards = _CREDIT
        self._num_idle = 0

    def enter(self, *, saved: int, waited: bool) -> None:
        """A round has begun: so many of its tokens were there, or it found the engine busy with guesses."""
        self._forwards = min(_FORGET * self._forwards + saved - waited, _CREDIT)

    def pays(self) -> bool:
        """Return whether to guess in this round. Asked once a round."""
        if self._forwards >= 0:
            return True
        self._num_idle = (self._num_idle + 1) % TRIAL
        return self._num_idle == 0
