"""When a drafter says what it has prepared for the outcomes of a proposal: as soon as all of it is there."""

from collections.abc import Callable

from drafter_svc.run_ahead.outcomes import Outcome
from drafter_svc.sources.model import Draft
from specgate.types import AnnouncedProposal, Announcement

Announce = Callable[[Announcement], None]
"""Told, on the engine's thread, what will be proposed for the outcomes that were guessed."""


class Announcer:
    """The announcement of what is drafted behind one proposal.

    Attributes:
        announcement, first_announced: what was said, as yet without a number, and the draft of its first proposal;
            None before.

    Args:
        position: the committed length that the branches stand behind.
    """

    def __init__(self, position: int, announce: Announce) -> None:
        self._position = position
        self._announce = announce
        self._branches: list[tuple[Outcome, Draft]] = []
        self._num_open = 0
        self.announcement: Announcement | None = None
        self.first_announced: Draft | None = None

    def begin(self, outcome: Outcome, draft: Draft) -> None:
        """Count a branch in, which is drafted behind ``outcome``."""
        self._branches.append((outcome, draft))
        self._num_open += 1

    def end(self, draft: Draft, *, drafted: bool) -> None:
        """A branch is drafted, or was dropped: then nothing is told of it. With the last one all are told."""
        self._num_open -= 1
        if not drafted:
            self._branches = [branch for branch in self._branches if branch[1] is not draft]
        if not self._num_open and self._branches:
            self._tell()

    def stop(self) -> None:
        """Tell nothing any more: the round is over. Lets go of the branches, whose logits are large."""
        self._branches, self.announcement, self.first_announced = [], None, None

    def _tell(self) -> None:
        announcement = [(outcome, draft) for outcome, draft in self._branches if draft.tokens]
        if announcement:
            proposals = (AnnouncedProposal(*outcome, tuple(draft.token_ids)) for outcome, draft in announcement)
            self.announcement, self.first_announced = Announcement(self._position, tuple(proposals)), announcement[0][1]
            self._announce(self.announcement)
