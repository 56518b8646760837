"""Makes traces of real texts and services.

A text is recorded under the gate ``none`` with ``logprobs`` 0. At every position the target's confidence is known from
its log-probability, and whether the draft agrees with the target there from the token's source: an accepted token was
agreed on, a recovered one was not. Of a bonus token nobody knows, since no draft was made for it. Where the draft is a
function of the text before it (greedy, shared_noise) a round that starts in the middle of an accepted run drafts the
same tokens, so the draft tokens that survive from a position on are the run of agreements there, for every γ. A second
run of the same text with another γ has its bonus tokens elsewhere, and fills the gaps. In rejection mode a draft
depends on the round that it was made in: a trace is one draw of many, no two texts can be merged, and there is one run.
"""

import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument
from specgate.types import TokenSource
from specgate_lab.replay.trace import TracedText

RECORDED_GAMMAS = (8, 7)
_AGREES = {source: True for source in TokenSource if source.is_accepted} | {TokenSource.RECOVERED: False}


class RecordedGeneration(Protocol):
    """One generation, iterated once for its deltas."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...


async def record(
    start: Callable[[GenerationRequest], RecordedGeneration],
    request: GenerationRequest,
    gammas: Sequence[int] = RECORDED_GAMMAS,
) -> TracedText | None:
    """Return the text that ``request``, which needs a seed above temperature 0, is answered with; one run a γ.

    In rejection mode above temperature 0 only the first γ is run. None where the runs write different texts, for a near
    tie.

    Raises:
        SpecgateError: what a run failed with.
    """
    runs = []
    for gamma in gammas[:1] if request.rejects else gammas:
        running = start(replace(request, gamma=gamma, gate=Gate.NONE, gate_threshold=None, logprobs=0))
        runs.append([delta async for delta in running])
    if len({tuple(token_id for delta in run for token_id in delta.token_ids) for run in runs}) > 1:
        return None
    return merge([text_of(run) for run in runs])


def text_of(deltas: Iterable[Delta]) -> TracedText:
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
    return TracedText(tuple(confidences), tuple(agrees))


def merge(texts: Sequence[TracedText]) -> TracedText:
    """Return one text that knows what any of these runs of it knows; the confidences are the first one's."""
    known = zip(*(text.agrees for text in texts), strict=True)
    agrees = tuple(next((one for one in votes if one is not None), None) for votes in known)
    return TracedText(texts[0].confidences, agrees)
