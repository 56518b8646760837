"""A session that drafts by suffix matches: no model, no device, and nothing without evidence."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drafter_svc.sources.source import Announce, RoundOrder, Submit
from drafter_svc.sources.suffix import LEAST_MATCH, SuffixText, until_stop
from specgate.service.text import TextPool
from specgate.types import (
    MAX_GAMMA,
    DraftMethod,
    DraftRequest,
    Proposal,
    RunningDraft,
    SessionSpec,
    TokenIds,
)

if TYPE_CHECKING:
    from specgate.runtime.engine.jobs import Task


class SuffixSession:
    """See ``SourceSession``. Its drafts cost almost nothing: a running one is told as soon as there is evidence for it.

    Args:
        pool: counts the tokens that all sessions hold.

    Raises:
        KVCacheFull: the prompt does not fit beside the other sessions' texts.
    """

    def __init__(self, spec: SessionSpec, pool: TextPool) -> None:
        self.spec = spec
        self.last_proposal: Sequence[int] = ()
        self.was_announced = False
        self._pool = pool
        self._ahead = 0
        self._running: RunningDraft | None = None
        committed = spec.committed_token_ids
        self._held = pool.take(len(committed))
        self._order = RoundOrder(spec.position)
        self._text = SuffixText(committed)
        self._is_full = False
        """The pool had no room for the committed tokens: nothing more is drafted."""

    @property
    def ahead(self) -> "SuffixSession":
        return self

    def warm(self) -> "Task[Proposal]":
        """See ``SourceSession``: the text was read when the session was opened."""
        return Proposal()
        yield

    def draft(self, request: DraftRequest) -> "Task[Proposal]":
        """See ``SourceSession``."""
        self._order.begin(request)
        self._follow(request.token_ids)
        self._ahead = request.running
        self.last_proposal = self._draft(request.gamma)
        proposal = Proposal(self.last_proposal, method=DraftMethod.SUFFIX)
        return proposal.as_certain() if self.spec.rejects else proposal
        yield

    def start(self, num_rows: int, submit: Submit, announce: Announce | None = None) -> None:
        """See ``LookAhead``: tell what the text goes on with if it goes on with the copy; nothing is told twice."""
        if announce is None:
            return
        copied, position = self._draft(self._ahead, awaited=1), len(self._text)
        known = self._running.after(self._text.token_ids, MAX_GAMMA) if self._running else ()
        if copied and (not known or copied[: len(known)] != known or 2 * len(known) < len(copied)):
            num_awaited = 0 if self._text.match.length >= LEAST_MATCH else 1
            self._running = RunningDraft(position, copied, DraftMethod.SUFFIX, num_awaited=num_awaited)
            # The session's text may be the end of the whole one.
            announce(self._running._replace(position=self._order.num_committed))

    def free(self) -> None:
        """See ``SourceSession``."""
        self._pool.give(self._held)
        self._held = 0

    def _follow(self, token_ids: TokenIds) -> None:
        self._is_full = self._is_full or not self._pool.try_take(len(token_ids))
        if not self._is_full:
            self._held += len(token_ids)
            self._text.extend(token_ids)

    def _draft(self, gamma: int, awaited: int = 0) -> TokenIds:
        """Return up to ``gamma`` tokens: the last one is the first stop token."""
        if gamma == 0 or self._is_full:
            return ()
        return tuple(until_stop(self._text.draft(gamma, awaited), self.spec.stop_token_ids))
