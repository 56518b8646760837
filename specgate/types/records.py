"""A round as one value: what was planned, proposed and decided, and how long it took."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from specgate.types.model import DraftMethod
from specgate.types.rounds import Proposal, Verdict


class WhyAlone(StrEnum):
    """Why the target decodes a token with no draft."""

    OFF = "off"
    """The request asks for no draft tokens."""
    GATE = "gate"
    """The gate is closed: the target was too unsure of the token before."""
    NO_GAIN = "no_gain"
    """``auto`` expects that the target alone is faster."""
    NO_COPY = "no_copy"
    """The drafter copies, and the text repeats nothing at this place."""
    NO_DRAFTER = "no_drafter"
    """No drafter is attached, or the one that was asked did not answer."""
    LAST_TOKEN = "last_token"
    """One token is left to emit."""
    NOT_YET = "not_yet"
    """The drafter is far away, and its running draft had no token for this place yet."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What one round asks of both services. ``gamma`` 0 asks the drafter for nothing.

    ``gamma``, ``max_solo_tokens`` and ``prepare`` are tokens, ``stop_below`` and ``solo_below`` raw probabilities.
    ``stop_below``: a draft ends after its own first token of less. ``solo_below``: while the target's last token had
    less it goes on alone, for up to ``max_solo_tokens``; ``ALWAYS_SOLO`` is more than any token has.
    ``prepare``: how long proposals may be that the drafter prepares for the next round, 0 leaves it to the drafter.
    ``keeps_warm``: the drafter follows a solo run token by token; else it receives nothing until it is asked again, so
    that its work takes no time from the target. ``why_alone``: why ``gamma`` is 0, or why the target decodes alone
    after the draft; None: because of ``solo_below``. ``running_gamma``, with ``gamma`` 0: nothing is asked for; the
    drafter stays ``ahead`` tokens ahead, and the target takes so many at a time of those that have arrived, for
    ``max_solo_tokens`` tokens.
    """

    gamma: int = 0
    stop_below: float = 0.0
    solo_below: float = 0.0
    max_solo_tokens: int = 0
    prepare: int = 0
    keeps_warm: bool = True
    why_alone: WhyAlone | None = None
    running_gamma: int = 0
    ahead: int = 0

    @property
    def sends_to_drafter(self) -> bool:
        """Whether the round is sent to the drafter."""
        return self.gamma > 0 or self.keeps_warm


class RoundTiming(NamedTuple):
    """``round_us`` is the time since the verdict before, or since the first plan; 0 for a token of a solo run.

    It excludes ``read_us``: the proposal was there, and the reader of the text was busy. A time that is not ``typical``
    includes more than a round: a prompt, another service's prompt, a lost drafter.
    """

    round_us: int = 0
    read_us: int = 0
    typical: bool = True


_NO_TIME = RoundTiming()


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One committed verdict: the first of a round, or one of the solo run after it, whose ``proposal`` is empty.

    ``num_tokens`` of the verdict's tokens are committed: fewer than it decided where the text ends within them.
    ``confidence`` is the target's, in [0, 1], in the last token committed before; None before the first one.
    ``finished``: it is the last one of its session. ``length`` of the text then, in tokens. ``agreement`` is what
    ``RecentAgreement`` said before it; None if unknown.
    """

    plan: RoundPlan
    proposal: Proposal
    verdict: Verdict
    num_tokens: int
    confidence: float | None = None
    timing: RoundTiming = _NO_TIME
    finished: bool = False
    length: int = 0
    agreement: float | None = None

    @property
    def num_accepted(self) -> int:
        """Draft tokens that are committed."""
        return min(self.verdict.num_accepted, self.num_tokens)

    @property
    def num_judged(self) -> int:
        """Draft tokens up to and including the first rejection: what follows says nothing of the draft."""
        rejected = self.num_accepted < self.num_tokens and self.num_accepted < len(self.proposal)
        return self.num_accepted + rejected

    @property
    def undrafted(self) -> bool:
        """Whether no draft token was judged."""
        return not len(self.proposal)

    @property
    def why_alone(self) -> WhyAlone | None:
        """Why there was no draft to judge; None: there was one."""
        if not self.undrafted:
            return None
        is_unsure = self.confidence is not None and self.confidence < self.plan.solo_below
        if self.plan.running_gamma and is_unsure:
            return WhyAlone.GATE
        if self.plan.why_alone is not None:
            return self.plan.why_alone
        if self.verdict.solo:
            return WhyAlone.GATE
        # A drafter that copies answers with nothing where it finds no match.
        return WhyAlone.NO_COPY if self.proposal.method is DraftMethod.SUFFIX else WhyAlone.NO_DRAFTER


class RecentAgreement:
    """How often the draft agreed with the target in a text lately."""

    FIRST, FIRST_COUNT = 0.65, 4.0
    """Of a text that nobody has drafted for, and after how many judged tokens it weighs as much as they do."""
    MOST, HALF_LIFE = 12.0, 128
    """The last so many judged tokens count; less, the more tokens ago they were judged: the text goes on."""

    def __init__(self) -> None:
        self._judged = self._agreed = 0.0

    def add(self, record: RoundRecord) -> None:
        """Learn from a verdict."""
        keep = 0.5 ** (record.num_tokens / self.HALF_LIFE)
        judged, agreed = self._judged * keep + record.num_judged, self._agreed * keep + record.num_accepted
        most = min(self.MOST / judged, 1.0) if judged else 1.0
        self._judged, self._agreed = judged * most, agreed * most

    @property
    def value(self) -> float:
        """The share of its judged tokens that the draft agreed on, in [0, 1], with ``FIRST_COUNT`` that came before."""
        return (self._agreed + self.FIRST_COUNT * self.FIRST) / (self._judged + self.FIRST_COUNT)
