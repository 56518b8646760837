"""Generations over the fake fleet, and a clock that a test sets."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.session import Session
from orchestrator.generation.generation import Generation
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.gates import Gate, make_policy
from orchestrator.services.failover import FailoverVerifier
from orchestrator.services.reattach import NoDrafter, ReattachingDrafter
from orchestrator.services.timeouts import Timeouts
from specgate.errors import SpecgateError
from specgate.types import SamplingParams, SessionSpec
from specgate_lab.measured_stats import MeasuredStats
from specgate_lab.timeline import Arrival, RequestTimeline
from tests.support.fake_fleet import FakeDialer, FakePool, MakeVerifier
from tests.support.fakes import VOCAB_SIZE, FakeVerifier

GREEDY = SamplingParams(temperature=0.0)
PATIENT = Timeouts(first_draft_s=60.0, draft_floor_s=60.0, first_verdict_s=60.0, verdict_floor_s=60.0)


def a_request(prompt: Sequence[int] = (5, 17, 3), max_tokens: int = 12, gamma: int = 3) -> GenerationRequest:
    return GenerationRequest(tuple(prompt), GREEDY, max_tokens, seed=1, gamma=gamma, gate=Gate.NONE)


@dataclass
class FakeStart:
    """Starts generations on fakes; counts what was asked and how many ran at a time at the most."""

    verifiers: Sequence[MakeVerifier | Exception] = (FakeVerifier,)
    asked: list[GenerationRequest] = field(default_factory=list)
    learner: Learner = field(default_factory=Learner)
    dialer: FakeDialer = field(init=False)

    def __post_init__(self) -> None:
        self.dialer = FakeDialer(verifiers=self.verifiers)
        self.pool = FakePool()

    def __call__(self, request: GenerationRequest) -> Generation:
        return self.generate(request)

    def generate(self, request: GenerationRequest) -> Generation:
        self.asked.append(request)
        spec = SessionSpec(
            request.prompt_token_ids,
            request.sampling,
            request.seed or 0,
            request.verification,
            request.max_tokens,
            vocab_size=VOCAB_SIZE,
        )
        session = Session(spec, OutputText(None, ()), on_record=filter(None, [self.learner.observer(request)]))
        drafts = request.max_gamma > 0
        drafter = ReattachingDrafter(FakePool(), self.dialer, session, PATIENT) if drafts else NoDrafter()
        verifier = FailoverVerifier(self.pool, self.dialer, session, PATIENT)
        return Generation(session, drafter, verifier, make_policy(request, drafter, self.learner))


@dataclass
class Ticks:
    """A clock that goes on by one second at each look."""

    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def a_timeline(
    due_s: float,
    *arrivals: tuple[float, int],
    stats: MeasuredStats | None = None,
    error: SpecgateError | None = None,
) -> RequestTimeline:
    return RequestTimeline(due_s, tuple(Arrival(*one) for one in arrivals), stats or MeasuredStats(), error)
