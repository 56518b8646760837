"""A running draft: it goes on without being asked, so that a target far away has its next tokens in time."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from drafter_svc.run_ahead.branches import Guessing
from drafter_svc.sources.draft import Draft, DraftLimits
from drafter_svc.sources.source import Announce, Submit
from specgate.runtime.kv_pages import KVSequence
from specgate.types import MAX_GAMMA, DraftMethod, DraftRequest, RunningDraft, common_prefix_length

TELLS = 1e-30
"""A ``stop_below`` that no token is below: the draft tells how sure it is."""
MESSAGE_S = 0.002
"""Drafted for one message: so much time makes it late, and messages take some tenths of it."""


class Running:
    """The draft of one session beyond its committed tokens, which are those of ``sequence`` before it.

    It assumes that all of it is accepted. Where the target chose another token it begins anew behind that one. See
    ``source.LookAhead``. Lives on the engine's thread.

    Args:
        add: drafts one token more, or several.
        first: position in the text of the first token of ``sequence``.
        clock: seconds.
    """

    was_announced = True

    def __init__(
        self,
        sequence: KVSequence,
        add: Callable[[Draft], Guessing],
        capacity: int,
        first: int,
        method: DraftMethod,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._add = add
        self._capacity = capacity
        self._first = first
        self._method = method
        self._draft = Draft(sequence, DraftLimits(0, 0, 0.0))
        self._clock = clock
        self._ahead, self._step = 0, 1
        """Tokens to be ahead, and to draft at once: as many as take ``MESSAGE_S``."""
        self._job: Future[Any] | None = None

    def follow(self, request: DraftRequest, start: int, token_ids: Sequence[int]) -> None:
        """Hold ``token_ids``, which were committed at ``start``, against the draft; what agrees of it stays.

        Raises what drafting failed with.
        """
        if self._job is not None and self._job.done() and not self._job.cancelled():
            self._job.result()
        draft, self._ahead = self._draft, request.running
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
        draft, begun_s = self._draft, self._clock()
        while len(draft.tokens) < self._ahead and self._goes_on(draft):
            length, step_s = len(draft.sequence), self._clock()
            draft.limits = DraftLimits(0, min(len(draft.tokens) + self._step, self._ahead), TELLS)
            yield from self._add(draft)
            draft.logits.clear()
            now_s = self._clock()
            token_s = (now_s - step_s) / max(len(draft.sequence) - length, 1)
            self._step = min(max(int(MESSAGE_S / max(token_s, 1e-6)), 1), MAX_GAMMA)
            is_last = len(draft.tokens) >= self._ahead or not self._goes_on(draft)
            if is_last or now_s - begun_s >= MESSAGE_S:
                position = self._first + draft.start
                announce(RunningDraft(position, tuple(draft.token_ids), self._method, draft.confidences))
                begun_s = now_s

    def _goes_on(self, draft: Draft) -> bool:
        return not draft.ended and len(draft.sequence) < self._capacity
