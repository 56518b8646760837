"""A drafter that leaves its sessions, as a service: ``python -m tests.support.leaving_drafter FLAGS``."""

import sys
from collections.abc import Generator

from drafter_svc.drafter import DraftSession
from specgate.errors import EngineFailed
from specgate.runtime.sampling_step import ForwardResult
from specgate.runtime.scheduler import ForwardRequest
from specgate.service import main as process
from specgate.types import DraftRequest, Proposal

draft = DraftSession.draft


def draft_or_leave(session: DraftSession, request: DraftRequest) -> Generator[ForwardRequest, ForwardResult, Proposal]:
    """Draft in the first rounds of a session: in one or two, by its seed, whatever is in its text."""
    if request.round > 1 + session.spec.seed % 2:
        raise EngineFailed("this drafter leaves")
    return draft(session, request)


def main() -> int:
    """Serve as the real one does, and leave."""
    DraftSession.draft = draft_or_leave  # type: ignore[assignment,method-assign]
    return process.main("drafter", sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
