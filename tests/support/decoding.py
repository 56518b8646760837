"""What the orchestrator's tests share: a session over the fake model, and the run of a decode loop."""

from typing import Any

from orchestrator.decode.loop import decode
from orchestrator.decode.output_text import OutputText
from orchestrator.decode.ports import Drafter, Verifier
from orchestrator.decode.request import Delta
from orchestrator.decode.session import Session
from orchestrator.decode.text import IncrementalText
from orchestrator.policy.gates import Policy
from specgate.types import SamplingParams, SessionSpec, Verification
from tests.support.fakes import EOS_TOKEN_ID, VOCAB_SIZE, FakeModel

PROMPT = (5, 17, 3)


def make_spec(
    max_tokens: int = 40,
    stop_token_ids: frozenset[int] = frozenset({EOS_TOKEN_ID}),
    verification: Verification = Verification.SHARED_NOISE,
    temperature: float = 0.0,
    **others: Any,
) -> SessionSpec:
    sampling, limits = SamplingParams(temperature=temperature), {"max_tokens": max_tokens, "vocab_size": VOCAB_SIZE}
    return SessionSpec(PROMPT, sampling, 1, verification, stop_token_ids=stop_token_ids, **limits, **others)


def make_session(
    spec: SessionSpec | None = None, decoder: IncrementalText | None = None, stop: tuple[str, ...] = ()
) -> Session:
    return Session(spec or make_spec(), OutputText(decoder, stop))


async def run(session: Session, drafter: Drafter, verifier: Verifier, policy: Policy) -> list[Delta]:
    return [delta async for delta in decode(session, drafter, verifier, policy)]


def emitted(deltas: list[Delta]) -> tuple[int, ...]:
    return tuple(token_id for delta in deltas for token_id in delta.token_ids)


def target_alone(spec: SessionSpec, eos_rate: float = 0.0) -> tuple[int, ...]:
    return FakeModel(eos_rate).generate(spec)
