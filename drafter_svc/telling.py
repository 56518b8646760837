"""When a drafter says what it has prepared: once a round, in time to be of use."""

import time
from collections.abc import Callable
from functools import partial

from drafter_svc.draft import Draft
from specgate.types import AnnouncedProposal, Announcement

Announce = Callable[[Announcement], None]
"""Told, on the engine's thread, what will be proposed for the outcomes that were guessed."""


class Telling:
    """The announcement of one round: made when all its branches are drafted, or a further token would be late.

    Args:
        position: the committed length that the branches stand behind.
        due_s: when the announcement is wanted, on ``clock``. What is drafted after that is there, untold.
    """

    def __init__(
        self,
        position: int,
        due_s: float,
        announce: Announce,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._position = position
        self._due_s = due_s
        self._announce: Announce | None = announce
        self._clock = clock
        self._begun_s = clock()
        self._branches: list[tuple[tuple[int, ...], Draft]] = []
        self._open: list[Draft] = []
        self._num_steps = 0
        self._is_due = False

    def begin(self, outcome: tuple[int, ...], draft: Draft) -> None:
        """Count a branch in, which is drafted behind ``outcome``."""
        self._branches.append((outcome, draft))
        self._open.append(draft)
        draft.on_token = partial(self._grew, draft)

    def end(self, draft: Draft, *, drafted: bool) -> None:
        """A branch is drafted, or was dropped: then nothing is told of it. With the last one all are told."""
        draft.on_token = None
        self._open = [one for one in self._open if one is not draft]
        if not drafted:
            self._branches = [branch for branch in self._branches if branch[1] is not draft]
        if not self._open:
            self._tell()

    def stop(self) -> None:
        """Tell nothing any more: the round is over. Lets go of the branches, whose logits are large."""
        self._announce = None
        for _, draft in self._branches:
            draft.on_token = None
        self._branches, self._open = [], []

    def _grew(self, draft: Draft) -> None:
        if self._announce is None:
            return
        if len(draft.tokens) > self._num_steps:
            self._num_steps = len(draft.tokens)
            self._decide()
        if self._is_due and all(len(other.tokens) == self._num_steps for other in self._open):
            self._tell()

    def _decide(self) -> None:
        # The first branch of a step decides for all.
        now_s = self._clock()
        step_s = (now_s - self._begun_s) / self._num_steps
        self._is_due = now_s + step_s > self._due_s

    def _tell(self) -> None:
        announce, self._announce = self._announce, None
        told = tuple(
            AnnouncedProposal(len(outcome) - 1, outcome[-1], tuple(draft.token_ids))
            for outcome, draft in self._branches
            if draft.tokens
        )
        if announce is not None and told:
            announce(Announcement(self._position, told))
