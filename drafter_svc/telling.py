"""When a drafter says what it has prepared: once a round, in time to be of use."""

import time
from collections.abc import Callable
from functools import partial

from drafter_svc.draft import Draft
from specgate.types import AnnouncedProposal, Announcement

NEW_SHARE = 0.1
"""What the latest request counts in a mean."""
FIRST_WANTED = 0.5

Announce = Callable[[Announcement], None]
"""Told, on the engine's thread, what will be proposed for the outcomes that were guessed."""


class Lateness:
    """What requests tell of drafting on after an announcement was due: ``mean_s`` is how long after it they come.

    ``wanted``: how often one goes on where a branch has stopped, of those that come before all branches are drafted.
    """

    def __init__(self) -> None:
        self.mean_s = 0.0
        self.wanted = FIRST_WANTED

    def enter(self, late_s: float, *, wanted: bool | None) -> None:
        """A request came so late; ``wanted``: it went on where a branch had stopped, None: all were drafted."""
        self.mean_s += NEW_SHARE * (max(late_s, 0.0) - self.mean_s)
        if wanted is not None:
            self.wanted += NEW_SHARE * (wanted - self.wanted)


class Telling:
    """The announcement of one round: made when all its branches are drafted, or a further token would be late.

    Args:
        position: the committed length that the branches stand behind.
        due_s: when the announcement is wanted, on ``clock``.
        slack_s: how long after that a request is to be expected. What is drafted until then is there, untold.
        wanted: the chance that a request goes on where a branch stops. Then a step that is under way has saved what of
            it is over; else it holds the request up for what is left of it. For one that comes as late as on average,
            a step pays of which more than the share 1 - wanted would be over.
    """

    def __init__(
        self,
        position: int,
        due_s: float,
        announce: Announce,
        slack_s: float = 0.0,
        wanted: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._position = position
        self._due_s = due_s
        self._expected_s = due_s + slack_s
        self._wanted = wanted
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
        """A branch is drafted, or rests, or was dropped: then nothing is told of it. With the last one all are told."""
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
        if len(draft.tokens) > self._num_steps:
            self._num_steps = len(draft.tokens)
            self._decide()
        if self._is_due and all(len(other.tokens) == self._num_steps for other in self._open):
            self._tell()

    def _decide(self) -> None:
        # The first branch of a step decides for all, before any of them is queued for the next one.
        now_s = self._clock()
        step_s = (now_s - self._begun_s) / self._num_steps
        self._is_due = now_s + step_s > self._due_s
        if now_s + (1 - self._wanted) * step_s > self._expected_s:
            for other in self._open:
                other.rests = True

    def _tell(self) -> None:
        announce, self._announce = self._announce, None
        told = tuple(
            AnnouncedProposal(len(outcome) - 1, outcome[-1], tuple(draft.token_ids))
            for outcome, draft in self._branches
            if draft.tokens
        )
        if announce is not None and told:
            announce(Announcement(self._position, told))
