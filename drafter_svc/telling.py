"""When a drafter says what it has prepared: once a round, in time to be of use."""

import time
from collections.abc import Callable
from functools import partial

from drafter_svc.draft import Draft
from specgate.types import AnnouncedProposal, Announcement

Announce = Callable[[Announcement], None]
"""Told, on the engine's thread, what will be proposed for the outcomes that were guessed."""


class Telling:
    """The announcement of one round: made when all its branches are drafted, or when a further token would be late.

    Args:
        position: the committed length that the branches stand behind.
        due_s: when the announcement is wanted, on ``clock``.
    """

    def __init__(
        self, position: int, due_s: float, announce: Announce, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._position = position
        self._due_s = due_s
        self._announce: Announce | None = announce
        self._clock = clock
        self._begun_s = clock()
        self._branches: list[tuple[tuple[int, ...], Draft]] = []
        self._open: list[Draft] = []

    def begin(self, outcome: tuple[int, ...], draft: Draft) -> None:
        """Count a branch in, which is drafted behind ``outcome``."""
        self._branches.append((outcome, draft))
        self._open.append(draft)
        draft.on_token = partial(self._grew, draft)

    def end(self, draft: Draft, *, drafted: bool) -> None:
        """A branch is drafted, or it was dropped before it was: then nothing is told of it."""
        self._open = [one for one in self._open if one is not draft]
        if not drafted:
            self._branches = [branch for branch in self._branches if branch[1] is not draft]
        if not self._open:
            self._tell()

    def stop(self) -> None:
        """Tell nothing any more: the round is over."""
        self._announce = None

    def _grew(self, draft: Draft) -> None:
        # Branches are drafted side by side: one token more is there when the last of them has it.
        if self._announce is None or any(len(other.tokens) < len(draft.tokens) for other in self._open):
            return
        now_s = self._clock()
        if now_s + (now_s - self._begun_s) / len(draft.tokens) > self._due_s:
            # Whoever asks next does not wait for the end of a step that is of no use.
            for other in self._open:
                other.rests = True
            self._tell()

    def _tell(self) -> None:
        announce, self._announce = self._announce, None
        told = tuple(
            AnnouncedProposal(len(outcome) - 1, outcome[-1], tuple(draft.token_ids))
            for outcome, draft in self._branches
            if draft.tokens
        )
        if announce is not None and told:
            announce(Announcement(self._position, told))
