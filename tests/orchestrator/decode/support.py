"""What the tests of decoding share: the fakes of one request, and a policy held to a drafter that is always there."""

from typing import NamedTuple

from orchestrator.decode.session import Session
from orchestrator.policy.gates import Policy, WithinLimits
from specgate.types import SessionSpec
from tests.support.decoding import make_session
from tests.support.fakes import FakeDrafter, FakeModel, FakeVerifier, Fault


class Drafts:
    """A drafter's state for planning: always there."""

    def __init__(self, context_length: int = 1 << 20) -> None:
        self.available = True
        self.may_return = False
        self.context_length = context_length

    def want(self) -> None:
        """It is there."""


def within(policy: Policy, context_length: int = 1 << 20) -> Policy:
    return WithinLimits(policy, Drafts(context_length))


class Parties(NamedTuple):
    """One request, and the fakes that serve it."""

    session: Session
    drafter: FakeDrafter
    verifier: FakeVerifier


def parties(
    spec: SessionSpec, agreement: float = 0.7, eos_rate: float = 0.0, faults: dict[int, Fault] | None = None
) -> Parties:
    model = FakeModel(eos_rate)
    drafter = FakeDrafter(spec, model, agreement, faults=faults or {})
    return Parties(make_session(spec), drafter, FakeVerifier(spec, model))
