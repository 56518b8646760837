"""A running draft: it goes on without being asked, so that a target far away has its next tokens in time."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from drafter_svc.run_ahead.branches import Guessing
from drafter_svc.sources.draft import Draft, DraftLimits
from drafter_svc.sources.source import Announce, Submit
from specgate.runtime.kv_pages import KVSequence
from specgate.types import DraftMethod, DraftRequest, RunningDraft, common_prefix_length

if TYPE_CHECKING:
    pass

TELLS = 1e-30
"""A ``stop_below`` that no token is below: the draft tells how sure it is."""
STEP = 4
"""New tokens of the first message where the client does not say; each further one has twice as many."""


class Running:
    """The draft of one session beyond its committed tokens, which are those of ``sequence`` before it.

    It assumes that all of it is accepted. Where the target chose another token it begins anew behind that one. See
    ``source.LookAhead``. Lives on the engine's thread.

    Args:
        add: drafts one token more, or several.
        first: position in the text of the first token of ``sequence``.
    """

    was_announced = True

    def __init__(
        self, sequence: KVSequence, add: Callable[[Draft], Guessing], capacity: int, first: int, method: DraftMethod
    ) -> None:
        self._add = add
        self._capacity = capacity
        self._first = first
        self._method = method
        self._draft = Draft(sequence, DraftLimits(0, 0, 0.0))
        self._ahead, self._step = 0, STEP
        self._job: Future[Any] | None = None

    def follow(self, request: DraftRequest, start: int, token_ids: Sequence[int]) -> None:
        """Hold ``token_ids``, which were committed at ``start``, against the draft; what agrees of it stays."""
        draft, self._ahead, self._step = self._draft, request.running, request.prepare or STEP
        kept = common_prefix_length(draft.sequence.token_ids[start:], token_ids)
        if kept == len(token_ids) and draft.start == start:
            del draft.tokens[:kept]
            return
        self.stop()
        draft.sequence.truncate(start + kept)
        draft.sequence.append(token_ids[kept:])

    def stop(self) -> None:
        """Draft no more, and forget what was drafted; the sequence keeps its tokens."""
        if self._job is not None:
            self._job.cancel()
        self._job, self._draft = None, Draft(self._draft.sequence, self._draft.limits)

    def start(self, num_rows: int, submit: Submit, announce: Announce | None = None) -> None:
        """Draft on until there are enough tokens."""
        if announce is not None and (self._job is None or self._job.done()):
            self._job = submit(self._run(announce))

    def _run(self, announce: Announce) -> Guessing:
        draft, step = self._draft, self._step
        while len(draft.tokens) < self._ahead and self._goes_on(draft):
            draft.limits = DraftLimits(0, min(len(draft.tokens) + step, self._ahead), TELLS)
            # The first tokens are awaited soon, those behind them later: fewer messages tell them.
            step *= 2
            while len(draft.tokens) < draft.limits.gamma and self._goes_on(draft):
                yield from self._add(draft)
                draft.logits.clear()
            position = self._first + draft.start
            announce(RunningDraft(position, tuple(draft.token_ids), self._method, draft.confidences))

    def _goes_on(self, draft: Draft) -> bool:
        return not draft.ended and len(draft.sequence) < self._capacity
