"""What recent texts tell of the draft: how often it agrees, by how sure the target was before.

Of every token it is known how sure the target was of the one before it, and mostly whether the draft agrees with the
target there: an accepted token was agreed on, a recovered one was not. Of a bonus token, and of one that the target
decoded alone, nobody knows. Such a one counts as agreed on as often as others behind a token of that confidence were.

A round that starts in the middle of an accepted run drafts what is left of it: to the token in ``shared_noise`` and
greedy, on average in ``rejection``. So what rounds of another γ would have come to is known without having been tried.
"""

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from specgate.types import RoundRecord

BUCKET_EDGES = (0.3, 0.5, 0.7, 0.85)
"""Of the target's confidence. Finer ones see too few tokens in a text of some hundred."""
NUM_BUCKETS = len(BUCKET_EDGES) + 1
FIRST_AGREEMENT = (0.5, 0.57, 0.65, 0.73, 0.8)
"""By bucket, of a draft that nobody has seen: high enough that one which can pay is tried."""
PRIOR_COUNT = 6.0
"""Judged tokens until what is seen of a bucket, or of all, weighs as much as what was expected."""
MOST_TOKENS, PRIOR_TOKENS = 768, 32
"""Remembered; and of which nothing is known, to begin with, so that a few lucky ones decide nothing."""
MOST_JUDGED = 192
"""Of those that were judged, the ones that say how often the draft agrees, however many tokens lie between them: a text
that the target goes on with alone does not forget why."""
_LUCK_STEP = 0.7548776662466927
"""Its multiples, less their whole parts, are spread evenly (Roberts, 2018): chance that is the same for all plans."""


def bucket_of(confidence: float | None) -> int:
    """Return the bucket of a confidence; before the first token it is the surest one, as for an open gate."""
    return NUM_BUCKETS - 1 if confidence is None else bisect_right(BUCKET_EDGES, confidence)


class TokenHistory(NamedTuple):
    """One entry a token: the bucket before it, and how many draft tokens would stand from there on."""

    buckets: list[int]
    runs: list[int]


class History:
    """Of one mode, over all its sessions."""

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, bool | None]] = deque(maxlen=MOST_TOKENS)
        self._tokens.extend((number % NUM_BUCKETS, None) for number in range(PRIOR_TOKENS))
        self._judged: deque[tuple[int, bool]] = deque(maxlen=MOST_JUDGED)

    def add(self, record: RoundRecord) -> None:
        """Take over the tokens of a verdict."""
        accepted = record.num_accepted
        # A verifier that does not tell is taken to have been as sure all along.
        known = record.verdict.accepted_confidences[:accepted] or (record.confidence,) * accepted
        rejected = False if record.num_judged > accepted else None
        confidences, verdicts = (record.confidence, *known), (*(True,) * accepted, rejected)
        # A text may have ended within its accepted tokens.
        for confidence, agrees in zip(confidences, verdicts[: record.num_tokens], strict=False):
            bucket = bucket_of(confidence)
            self._tokens.append((bucket, agrees))
            if agrees is not None:
                self._judged.append((bucket, agrees))

    def agreement(self) -> list[float]:
        """Return by bucket how often the draft agrees: where little was seen, as much more or less as all others do."""
        seen, agreed = [0] * NUM_BUCKETS, [0] * NUM_BUCKETS
        for bucket, agrees in self._judged:
            seen[bucket] += 1
            agreed[bucket] += agrees
        expected = sum(count * first for count, first in zip(seen, FIRST_AGREEMENT, strict=True))
        shift = (sum(agreed) - expected) / (sum(seen) + PRIOR_COUNT)
        return [
            (agreed[bucket] + PRIOR_COUNT * min(max(first + shift, 0.0), 1.0)) / (seen[bucket] + PRIOR_COUNT)
            for bucket, first in enumerate(FIRST_AGREEMENT)
        ]

    def tokens(self) -> TokenHistory:
        """Return what is remembered, oldest token first, as one text."""
        agreement, luck, run, runs = self.agreement(), 0.5, 0, list[int]()
        for bucket, agrees in reversed(self._tokens):
            luck = (luck + _LUCK_STEP) % 1
            run = run + 1 if (luck < agreement[bucket] if agrees is None else agrees) else 0
            runs.append(run)
        runs.reverse()
        return TokenHistory([bucket for bucket, _ in self._tokens], runs)
