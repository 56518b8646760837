"""What the learner is told of each verdict, once it is committed."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from specgate.types import SamplingParams, Verification


class PreviousRound(NamedTuple):
    """The round before: its draft tokens, whether they all stood, and how many were to be prepared meanwhile."""

    gamma: int
    whole: bool
    prepare: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """One committed verdict, with nothing in it of what the tokens are.

    ``before`` and ``after`` are the target's confidence in the last token committed before and by this verdict, None
    before the first one. ``judged`` counts the draft tokens up to and including the first rejection, ``accepted``
    those that stand, ``accepted_confidences`` the target's confidence in each of these; empty where the verifier does
    not tell. ``ready`` draft tokens had been announced, so that none of them was asked for; ``prepared`` ones, these
    among them, were there before the round. ``previous_round`` is None where no round was just before. ``chosen`` is
    the number of the table by which ``auto`` had planned the round, 0 where it tried something. A ``streamed`` verdict
    followed another one without a round trip; it is ``warm`` where the drafter followed each of these tokens and worked
    ahead. ``round_us`` is the time since the verdict before, or since the first plan; 0 for a streamed one; without
    ``read_us``, in which the proposal lay there and the reader was busy with that.
    ``forward_us`` and ``batch_rows`` are of the forward that it was decided in, 0 where the verifier does not tell.
    ``settled`` is False where a prefill may have been waited for, another verifier, or a drafter that had to read a
    solo run; ``finished`` is True for a session's last verdict.
    """

    before: float | None
    after: float
    proposed: int = 0
    judged: int = 0
    accepted: int = 0
    accepted_confidences: tuple[float, ...] = ()
    ready: int = 0
    prepared: int = 0
    previous_round: PreviousRound | None = None
    chosen: int = 0
    streamed: bool = False
    warm: bool = False
    settled: bool = True
    finished: bool = False
    draft_us: int = 0
    verify_us: int = 0
    round_us: int = 0
    read_us: int = 0
    batch_sessions: int = 0
    batch_rows: int = 0
    forward_us: int = 0


class Observer(Protocol):
    """Whom one session tells of its verdicts."""

    def __call__(self, seen: Observation, /) -> None:
        """Take in a verdict that has been committed."""
        ...

    def leave(self) -> None:
        """Take in that no verdict will follow, finished or not. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class Mode:
    """Requests whose drafts are expected to survive alike: what is learned of one is used for the other.

    ``heat`` is the temperature in quarters, 0 for greedy alone and 8 for all that is hotter than 1.75.
    """

    verification: Verification
    heat: int

    @property
    def is_announced(self) -> bool:
        """Whether a drafter tells of what it has prepared: where that is small, and holds for any round."""
        return self.verification is Verification.SHARED_NOISE

    @classmethod
    def of(cls, verification: Verification, sampling: SamplingParams) -> "Mode":
        """Return the mode of a request; greedy is one mode, however it would be verified."""
        if sampling.greedy:
            return cls(Verification.SHARED_NOISE, 0)
        return cls(verification, min(max(round(sampling.temperature * 4), 1), 8))
