"""One request over a fleet of fakes, whose services die, hang and lie as they are told to."""

from dataclasses import replace
from functools import partial

from orchestrator.decode.request import Delta
from orchestrator.decode.session import Session
from orchestrator.policy.gates import AlwaysDraft, Policy, TargetConfidence, WithinLimits
from orchestrator.services.failover import FailoverVerifier
from orchestrator.services.reattach import ReattachingDrafter
from orchestrator.services.timeouts import Timeouts
from specgate.types import SessionSpec
from tests.support.decoding import emitted, make_session, make_spec, run, target_alone
from tests.support.fake_fleet import FakeDialer, FakePool, MakeDrafter, MakeVerifier
from tests.support.fakes import FakeDrafter, FakeVerifier, Fault

PATIENT = Timeouts(first_draft_s=60.0, draft_floor_s=60.0, first_verdict_s=60.0, verdict_floor_s=60.0)
"""For faults that need no waiting, so that a busy machine adds none of its own."""
HUNG_DRAFT = replace(PATIENT, open_s=0.5, first_draft_s=0.5, draft_floor_s=0.5)
HUNG_VERDICT = replace(PATIENT, open_s=0.5, first_verdict_s=0.5, verdict_floor_s=0.5)


class Run:
    """One request over a fake fleet."""

    def __init__(
        self,
        dialer: FakeDialer,
        spec: SessionSpec | None = None,
        gate: float | None = None,
        timeouts: Timeouts = PATIENT,
    ) -> None:
        self.session: Session = make_session(spec or make_spec(60))
        self.dialer = dialer
        self.drafters, self.verifiers = FakePool(), FakePool()
        self.drafter = ReattachingDrafter(self.drafters, dialer, self.session, timeouts)
        self.attached: list[str] = []
        """The endpoints of the verifiers that it was on."""
        self.verifier = FailoverVerifier(self.verifiers, dialer, self.session, timeouts, self.attached.append)
        inner: Policy = AlwaysDraft(4) if gate is None else TargetConfidence(4, gate)
        self.policy = WithinLimits(inner, self.drafter)

    async def __call__(self) -> list[Delta]:
        try:
            await self.drafter.open()
            await self.verifier.open()
            return await run(self.session, self.drafter, self.verifier, self.policy)
        finally:
            await self.drafter.close()
            await self.verifier.close()
            assert self.drafters.num_leased == self.verifiers.num_leased == 0
            assert all(one.closed for one in self.dialer.opened_drafters)
            assert all(one.closed for one in self.dialer.opened_verifiers)


async def exact(one: Run) -> Run:
    """Run a request to its end, and check that its text is what the target alone says: no gap and no repeat."""
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    return one


def drafter(agreement: float = 0.8, **faults: Fault) -> MakeDrafter:
    """Keyword arguments are at<number of proposals>=fault."""
    return partial(FakeDrafter, agreement=agreement, faults=_by_number(faults))


def verifier(delay_s: float = 0.0, **faults: Fault) -> MakeVerifier:
    return partial(FakeVerifier, delay_s=delay_s, faults=_by_number(faults))


def _by_number(faults: dict[str, Fault]) -> dict[int, Fault]:
    return {int(name.removeprefix("at")): fault for name, fault in faults.items()}
