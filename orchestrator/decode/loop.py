"""The hot loop: draft, verify, commit, yield."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from orchestrator.decode.lookahead import Rounds
from orchestrator.decode.ports import Drafter, Verifier
from orchestrator.decode.request import Delta
from orchestrator.decode.session import Session
from orchestrator.policy.gates import Policy


async def decode(session: Session, drafter: Drafter, verifier: Verifier, policy: Policy) -> AsyncGenerator[Delta, None]:
    """Yield what each verdict commits, until the session is finished."""
    async with aclosing(Rounds(session, drafter, verifier, policy)) as rounds:
        while not session.finished:
            plan, proposal = await rounds.next()
            async with aclosing(verifier.verify(session.verify_request(proposal, plan))) as verdicts:
                async for verdict in verdicts:
                    delta = session.commit(proposal, verdict)
                    await rounds.follow(verdict)
                    yield delta
                    if session.finished:
                        break
