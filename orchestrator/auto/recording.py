"""Makes traces of real texts and services.

A text is recorded under the gate ``none`` with ``logprobs`` 0. At every position the target's confidence is known from
its log-probability, and whether the draft agrees with the target there from the token's source: an accepted token was
agreed on, a recovered one was not. Of a bonus token nobody knows, since no draft was made for it. Where the draft is a
function of the text before it (greedy, shared_noise) a round that starts in the middle of an accepted run drafts the
same tokens, so the draft tokens that survive from a position on are the run of agreements there, for every γ. A second
run of the same text with another γ has its bonus tokens elsewhere, and fills the gaps. In rejection mode a draft
depends on the round that it was made in: a trace is one draw of many, and no two texts can be merged.
"""

import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from orchestrator.auto.trace import Text
from orchestrator.request import Delta, Gate, GenerationRequest
from specgate.errors import InvalidArgument
from specgate.types import TokenSource

RECORDED_GAMMAS = (8, 7)
RUNS_DIFFER = "texts"
"""The field of what is raised where two runs of a text are not the same: a near tie, or rejection."""
_AGREES = {TokenSource.ACCEPTED: True, TokenSource.RECOVERED: False}


class Running(Protocol):
    """One generation, iterated once for its deltas."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...


async def record(
    start: Callable[[GenerationRequest], Running],
    request: GenerationRequest,
    gammas: Sequence[int] = RECORDED_GAMMAS,
) -> Text:
    """Return the text that ``request``, which needs a seed above temperature 0, is answered with; one run a γ.

    Raises:
        InvalidArgument: the runs are not of the same text.
        SpecgateError: what a run failed with.
    """
    texts = []
    for gamma in gammas:
        running = start(replace(request, gamma=gamma, gate=Gate.NONE, gate_threshold=None, logprobs=0))
        texts.append(text_of([delta async for delta in running]))
    return merge(texts)


def text_of(deltas: Iterable[Delta]) -> Text:
    """Return what the deltas of one request, made with ``logprobs`` 0 or more, tell.

    Raises:
        InvalidArgument: they hold no log-probabilities.
    """
    confidences: list[float] = []
    agrees: list[bool | None] = []
    for delta in deltas:
        if len(delta.logprobs) != len(delta.token_ids):
            raise InvalidArgument("logprobs", "a trace needs them for every token; 0 likeliest ones are enough")
        confidences += (math.exp(entry.logprob) for entry in delta.logprobs)
        agrees += (_AGREES.get(source) for source in delta.sources)
    return Text(tuple(confidences), tuple(agrees))


def merge(texts: Sequence[Text]) -> Text:
    """Return one text that knows what any of the runs of it knows.

    Raises:
        InvalidArgument: they are not runs of the same text.
    """
    first = texts[0]
    for other in texts[1:]:
        if len(other) != len(first) or not all(map(_alike, first.confidences, other.confidences)):
            raise InvalidArgument(RUNS_DIFFER, "the runs differ: they are not of the same text")
    known = zip(*(text.agrees for text in texts), strict=True)
    return Text(first.confidences, tuple(next((one for one in votes if one is not None), None) for votes in known))


def _alike(one: float, two: float) -> bool:
    # Forwards of different widths round differently.
    return math.isclose(one, two, abs_tol=1e-3)
