"""The texts of lately, as far as they say how drafts would have fared there.

Of every token it is known how sure the target was of the one before it, and mostly whether the draft agrees with the
target there: an accepted token was agreed on, a recovered one was not. Of a bonus token, and of one that the target
decoded alone, nobody knows. Such a one agrees as often as others behind a token of that confidence did.

That is the same for every choice of γ: a round that starts in the middle of an accepted run drafts what is left of it.
Greedy and in ``shared_noise`` that is so to the token, in ``rejection`` on average. So what rounds of another γ would
have come to is known without having been tried.
"""

from collections import deque
from itertools import count
from typing import NamedTuple

from orchestrator.policy.auto.agreement import NUM_BUCKETS, Agreement, bucket_of
from orchestrator.policy.auto.observation import Observation

MOST_TOKENS = 1024
PRIOR_TOKENS = 64
"""Tokens of which nothing is known, to begin with: so little luck does not choose."""
PART_TOKENS = 64
"""Parts of texts are forgotten as a whole."""
_LUCK_STEP, _UNKNOWN_STEP = 0.7548776662466927, 0.5698402909980532
"""Their multiples, less their whole parts, fill the unit square evenly (Roberts, 2018): chance without random numbers,
and the same for all that is compared."""


class HistoryToken(NamedTuple):
    """One token: the bucket of the confidence before it, whether the draft agrees, and two numbers to decide by.

    ``ready``: whether something was prepared when a round began there; None: none did, or none was just before it.
    """

    bucket: int
    agrees: bool | None
    ready: bool | None
    luck: float
    unknown_luck: float


class TokenHistory(NamedTuple):
    """What is remembered, one entry a token.

    ``runs``: how many draft tokens would stand from there on. ``ready``: whether a round that begins there finds
    something prepared; None: it is not known, and ``luck``, in [0, 1), decides.
    """

    buckets: list[int]
    runs: list[int]
    ready: list[bool | None]
    luck: list[float]

    @property
    def agreement(self) -> float:
        """How often the draft agrees."""
        return sum(run > 0 for run in self.runs) / len(self.runs)


class History:
    """Of one mode, over all its sessions."""

    def __init__(self) -> None:
        self.agreement = Agreement()
        self._numbers = count()
        self._parts: deque[tuple[int, list[HistoryToken]]] = deque()
        self._open: dict[int, list[HistoryToken]] = {}
        """By session, the part that grows."""
        self._num_tokens = 0
        for number in range(PRIOR_TOKENS):
            self._put(-1, number % NUM_BUCKETS, None)

    def add(self, session: int, seen: Observation) -> None:
        """Take over the tokens of a verdict."""
        known = seen.accepted_confidences or (seen.before,) * seen.accepted
        buckets = [bucket_of(confidence) for confidence in (seen.before, *known)]
        own = False if seen.judged > seen.accepted else None
        ready = seen.prepared > 0 if seen.proposed and seen.previous_round is not None else None
        for bucket, agrees in zip(buckets, (*(True,) * seen.accepted, own), strict=True):
            self._put(session, bucket, agrees, ready)
            ready = None
        if seen.finished:
            self.leave(session)

    def leave(self, session: int) -> None:
        """End a session's part."""
        self._open.pop(session, None)

    def text(self) -> TokenHistory:
        """Return all that is remembered, oldest part first, as one text."""
        places = [place for _, part in self._parts for place in part]
        expected, run, runs = self.agreement.expected(), 0, list[int]()
        for bucket, agrees, _, _, unknown_luck in reversed(places):
            run = run + 1 if (unknown_luck < expected[bucket] if agrees is None else agrees) else 0
            runs.append(run)
        runs.reverse()
        buckets, _, ready, luck, _ = map(list, zip(*places, strict=True))
        return TokenHistory(buckets, runs, ready, luck)

    def _put(self, session: int, bucket: int, agrees: bool | None, ready: bool | None = None) -> None:
        part = self._open.get(session)
        if part is None or len(part) == PART_TOKENS:
            part = self._open[session] = []
            self._parts.append((session, part))
        if agrees is not None:
            self.agreement.add(bucket, agrees)
        number = next(self._numbers)
        part.append(HistoryToken(bucket, agrees, ready, number * _LUCK_STEP % 1, number * _UNKNOWN_STEP % 1))
        self._num_tokens += 1
        while self._num_tokens > MOST_TOKENS and len(self._parts) > 1:
            self._forget()

    def _forget(self) -> None:
        session, part = self._parts.popleft()
        self._num_tokens -= len(part)
        if self._open.get(session) is part:
            del self._open[session]
