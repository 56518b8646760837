"""Speculative decoding in its plainest form. Read it first: ``decode`` commits the same tokens, only sooner."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from orchestrator.decode.ports import Drafter, Verifier
from orchestrator.decode.request import Delta
from orchestrator.decode.session import Session
from specgate.types import NO_PROPOSAL, RoundPlan


async def decode_plainly(
    session: Session, drafter: Drafter, verifier: Verifier, gamma: int
) -> AsyncGenerator[Delta, None]:
    """Yield what each round commits: the drafter proposes ``gamma`` tokens, the verifier says which of them stand.

    There is no gate, no lookahead and no failover: an error of either service ends the text.
    """
    while not session.finished:
        # A verdict commits one token more than it accepts.
        plan = RoundPlan(min(gamma, session.remaining - 1))
        request = session.draft_request(plan)
        proposal = await drafter.draft(request) if request else NO_PROPOSAL
        async with aclosing(verifier.verify(session.verify_request(proposal, plan))) as verdicts:
            async for verdict in verdicts:
                yield session.commit(proposal, verdict)
