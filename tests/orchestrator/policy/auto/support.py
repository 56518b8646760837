"""What the tests of ``auto`` share: requests, observations, and a learner that has seen rounds of a given kind."""

from dataclasses import dataclass

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.auto.observation import Mode, Observation
from orchestrator.policy.gates import Gate

REQUEST = GenerationRequest((1,), gate=Gate.AUTO, gamma=8)
MODE = Mode.of(REQUEST.verification, REQUEST.sampling)
GAMMAS = (3, 1, 5, 2, 8, 4)


@dataclass
class Progress:
    confidence: float | None = None
    length: int = 10
    remaining: int = 1000
    fully_accepted: bool = True


def a_round(
    gamma: int = 4,
    accepted: int = 2,
    before: float = 0.9,
    after: float = 0.9,
    forward_us: int = 8000,
    token_us: int = 800,
    batch: int = 1,
) -> Observation:
    """A round of one of ``batch`` equal sessions; a row costs 3 % of a forward."""
    rows = batch * (gamma + 1)
    forward_us += forward_us * 3 * (rows - 1) // 100
    return Observation(
        before=before,
        after=after,
        proposed=gamma,
        judged=min(accepted + 1, gamma),
        accepted=accepted,
        draft_us=token_us * gamma,
        verify_us=forward_us,
        round_us=token_us * gamma + forward_us + 400,
        batch_sessions=batch,
        batch_rows=rows,
        forward_us=forward_us,
    )


def solo(before: float = 0.9, after: float = 0.9, forward_us: int = 8000) -> Observation:
    """One streamed token."""
    return Observation(
        before, after, streamed=True, verify_us=forward_us, batch_sessions=1, batch_rows=1, forward_us=forward_us
    )


def taught(*seen: Observation, learner: Learner | None = None, request: GenerationRequest = REQUEST) -> Learner:
    """Return a learner to which one session told ``seen``."""
    learner = learner or Learner()
    observer = learner.observer(request)
    assert observer is not None
    for observation in seen:
        observer(observation)
    return learner
