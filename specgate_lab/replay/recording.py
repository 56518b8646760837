"""Makes traces of real texts and services.

A text is recorded under the gate ``none`` with ``logprobs`` 0. The target's confidence at a position follows from its
log-probability, and the draft's agreement with the target from the token's source: the draft agreed with an accepted
token and did not with a recovered one. Of a bonus token it is unknown, since no draft was made for it. Where the draft
is a function of the text before it (greedy, shared_noise), a round that starts in the middle of an accepted run drafts
the same tokens, so the draft tokens that survive from a position on are the run of agreements there, for every γ. A
second run of the same text with another γ has its bonus tokens elsewhere, and fills the gaps. In rejection mode a draft
depends on the round that it was made in: a trace is one draw of many, no two texts can be merged, and there is one run.
"""

import math
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import replace

from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import TokenSource
from specgate_lab.replay.trace import TracedText

RECORDED_GAMMAS = (8, 7)
_AGREES = {source: True for source in TokenSource if source.is_accepted} | {TokenSource.RECOVERED: False}


async def record(
    start: Callable[[GenerationRequest], AsyncIterable[Delta]],
    request: GenerationRequest,
    gammas: Sequence[int] = RECORDED_GAMMAS,
) -> TracedText | None:
    """Return the answer to ``request``, which needs a seed above temperature 0; one run for each γ.

    In rejection mode above temperature 0 only the first γ is run. None where the runs write different texts, for a near
    tie.

    Raises:
        SpecgateError: a run broke off.
    """
    runs = []
    for gamma in gammas[:1] if request.rejects else gammas:
        running = start(replace(request, gamma=gamma, gate=Gate.NONE, gate_threshold=None, logprobs=0))
        runs.append([delta async for delta in running])
    if len({tuple(token_id for delta in run for token_id in delta.token_ids) for run in runs}) > 1:
        return None
    known = zip(*([_AGREES.get(source) for delta in run for source in delta.sources] for run in runs), strict=True)
    confidences = (math.exp(entry.logprob) for delta in runs[0] for entry in delta.logprobs)
    return TracedText(
        tuple(confidences), tuple(next((agrees for agrees in votes if agrees is not None), None) for votes in known)
    )
