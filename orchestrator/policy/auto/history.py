"""What recent texts tell of the draft: how often it agrees, by how sure the target was before and the draft itself is.

Of every token it is known how sure the target was of the one before it, and mostly whether the draft agrees with the
target there: an accepted token was agreed on, a recovered one was not. Of a bonus token, and of one that the target
decoded alone, nobody knows. Such a one counts as agreed on as often as others behind a token of that confidence were,
and the draft as sure of it as it was of others that came to the same.

A round that starts in the middle of an accepted run drafts what is left of it: to the token in ``shared_noise`` and
greedy, on average in ``rejection``. So what rounds of another γ would have come to is known without having been tried.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from specgate.types import RoundRecord

BUCKET_EDGES = (0.3, 0.5, 0.7, 0.85)
"""Of the target's confidence. Finer ones see too few tokens in a text of some hundred."""
NUM_BUCKETS = len(BUCKET_EDGES) + 1
POOR_BELOW = 0.4
"""Recent agreement of a poor text, on which the draft does badly."""
STOPS = (1e-30, 0.2, 0.4, 0.6, 0.8)
"""Probabilities below which a draft may end. No token is below the first one: the drafter only tells how sure it is."""
FIRST_AGREEMENT = (0.5, 0.57, 0.65, 0.73, 0.8)
"""By bucket, of a draft that nobody has seen: high enough that one which can pay is tried."""
PRIOR_COUNT = 6.0
"""Judged tokens until what is seen of a bucket, or of all, weighs as much as what was expected."""
MOST_TOKENS, PRIOR_TOKENS = 768, 32
"""Remembered; and of which nothing is known, to begin with, so that a few lucky ones decide nothing."""
MOST_JUDGED = 192
"""Of those that were judged, the ones that say how often the draft agrees, however many tokens lie between them: a text
that the target goes on with alone does not forget why. So many of poor texts, and so many of others."""
_LUCK_STEP, _SURENESS_STEP = 0.7548776662466927, 0.5698402909980532
"""Their multiples, less their whole parts, are spread evenly, together too (Roberts, 2018): chance that is the same for
all plans."""


def bucket_of(confidence: float | None) -> int:
    """Return the bucket of a confidence; before the first token it is the surest one, as for an open gate."""
    return NUM_BUCKETS - 1 if confidence is None else bisect_right(BUCKET_EDGES, confidence)


def is_poor(agreement: float | None) -> bool:
    """Return whether a text with this recent agreement is poor; one that is unknown is not."""
    return agreement is not None and agreement < POOR_BELOW


class TokenHistory(NamedTuple):
    """One entry a token: the state before it, how many draft tokens would stand from there on; and for each of
    ``STOPS``, if it is known how sure the draft is, after how many tokens a draft from there on would end.

    A state is the bucket of the confidence, and in a poor text ``NUM_BUCKETS`` more.
    """

    states: list[int]
    runs: list[int]
    ends: tuple[list[int], ...] = ()


class _Token(NamedTuple):
    """``agrees`` and ``sureness``, the number of the last of ``STOPS`` that the draft is not below: None is unknown."""

    state: int
    agrees: bool | None = None
    sureness: int | None = None


class History:
    """Of one mode, over all its sessions."""

    def __init__(self) -> None:
        self._tokens: deque[_Token] = deque(maxlen=MOST_TOKENS)
        self._tokens.extend(_Token(number % NUM_BUCKETS) for number in range(PRIOR_TOKENS))
        self._judged = tuple(deque[_Token](maxlen=MOST_JUDGED) for _ in range(2))

    def add(self, record: RoundRecord) -> None:
        """Take over the tokens of a verdict."""
        accepted, poor = record.num_accepted, is_poor(record.agreement)
        # A verifier that does not tell is taken to have been as sure all along.
        known = record.verdict.accepted_confidences[:accepted] or (record.confidence,) * accepted
        rejected = False if record.num_judged > accepted else None
        confidences, verdicts = (record.confidence, *known), (*(True,) * accepted, rejected)
        probs = record.proposal.draft_confidences or (None,) * len(record.proposal)
        sureness = [None if prob is None else bisect_right(STOPS, prob, 1) - 1 for prob in (*probs, None)]
        # A text may have ended within its accepted tokens.
        for confidence, agrees, sure in zip(confidences, verdicts[: record.num_tokens], sureness, strict=False):
            token = _Token(bucket_of(confidence) + poor * NUM_BUCKETS, agrees, sure)
            self._tokens.append(token)
            if agrees is not None:
                self._judged[poor].append(token)

    def agreement(self) -> list[float]:
        """Return by state how often the draft agrees: where little was seen, as much more or less as all others do."""
        usual = _agreement(self._judged[False], FIRST_AGREEMENT)
        return usual + _agreement(self._judged[True], [min(one, POOR_BELOW) for one in usual])

    def tokens(self) -> TokenHistory:
        """Return what is remembered, oldest token first, as one text."""
        agreement, shares, luck, other = self.agreement(), self._sureness_shares(), 0.5, 0.5
        knows_draft = any(token.sureness is not None for token in chain(*self._judged))
        run, runs, ends = 0, list[int](), [list[int]() for _ in (STOPS if knows_draft else ())]
        for state, agrees, sureness in reversed(self._tokens):
            luck, other = (luck + _LUCK_STEP) % 1, (other + _SURENESS_STEP) % 1
            stands = luck < agreement[state] if agrees is None else agrees
            run = run + 1 if stands else 0
            runs.append(run)
            sure = bisect_right(shares[stands], other) if sureness is None else sureness
            for stop, own in enumerate(ends):
                own.append(1 if sure < stop or not own else own[-1] + 1)
        states = [token.state for token in self._tokens]
        runs.reverse()
        return TokenHistory(states, runs, tuple(own[::-1] for own in ends))

    def _sureness_shares(self) -> list[list[float]]:
        """Return, of tokens that did not and that did agree, the share of those up to each sureness but the last."""
        counts = [[1.0] * len(STOPS) for _ in range(2)]
        for _, agrees, sureness in chain(*self._judged):
            if sureness is not None:
                counts[bool(agrees)][sureness] += 1
        return [[seen / sum(own) for seen in accumulate(own[:-1])] for own in counts]


def _agreement(judged: Collection[_Token], first: Sequence[float]) -> list[float]:
    """Return by bucket how often the draft agreed on the judged tokens, of which ``first`` was expected."""
    seen, agreed = [0] * NUM_BUCKETS, [0] * NUM_BUCKETS
    for state, agrees, _ in judged:
        seen[state % NUM_BUCKETS] += 1
        agreed[state % NUM_BUCKETS] += bool(agrees)
    expected = sum(count * one for count, one in zip(seen, first, strict=True))
    shift = (sum(agreed) - expected) / (sum(seen) + PRIOR_COUNT)
    return [
        (agreed[bucket] + PRIOR_COUNT * min(max(one + shift, 0.0), 1.0)) / (seen[bucket] + PRIOR_COUNT)
        for bucket, one in enumerate(first)
    ]
