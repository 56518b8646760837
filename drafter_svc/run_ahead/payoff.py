"""Whether guessing pays for a session, in forwards of the draft model."""

_FORGET = 0.95
"""What a round counts after the next one."""
_CREDIT = 8.0
"""Forwards that may be lost before guessing stops."""
TRIAL = 8
"""While guessing does not pay, one round in so many is guessed all the same: the text may become easier."""


class Payoff:
    """Forwards that prepared drafts saved, minus forwards that drafts waited for while guesses ran."""

    def __init__(self) -> None:
        self._forwards = _CREDIT
        self._num_idle = 0

    def enter(self, *, saved: int, waited: bool) -> None:
        """Count a round: ``saved`` tokens were prepared; it ``waited`` if the engine was busy with guesses."""
        self._forwards = min(_FORGET * self._forwards + saved - waited, _CREDIT)

    def pays(self) -> bool:
        """Return whether to guess in this round. Asked once a round."""
        if self._forwards >= 0:
            return True
        self._num_idle = (self._num_idle + 1) % TRIAL
        return self._num_idle == 0
