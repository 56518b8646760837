"""What a verifier tells of its prefix cache is what its forwards did not compute: over gRPC, on a real engine."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.decode.ports import Lease
from specgate.runtime.kv_pages import PagePool
from specgate.types import Proposal, SamplingParams, SessionSpec, Verdict, Verification, VerifyRequest
from tests.support.in_process import InProcess, serving
from tests.support.models import KnownModel, run_task, write_llama
from tests.support.orchestrating import dialing
from tests.support.sessions import open_session
from verifier_svc.verifier import Verifying, VerifySession

BLOCK = 16
"""Tokens that are shared at once."""
PROMPT = tuple((7 * i * i + 3 * i) % 64 for i in range(5 * BLOCK + 3))
SPEC = SessionSpec(PROMPT, SamplingParams(), 1, Verification.SHARED_NOISE, 8)


class Counting:
    """Counts the rows of all forwards of a service."""

    def __init__(self, service: InProcess) -> None:
        self.endpoint, self.num_rows = service.endpoint, 0
        forward = service.runner.forward

        def counted(batch: Any, **options: Any) -> Any:
            self.num_rows += sum(rows.num_rows for rows in batch)
            return forward(batch, **options)

        service.runner.forward = counted


@pytest.fixture
async def verifier(tmp_path: Path) -> AsyncIterator[Counting]:
    async with serving("verifier", write_llama(tmp_path / "target")) as service:
        yield Counting(service)


async def told_of(service: Counting, spec: SessionSpec) -> int:
    """Return what the verdicts of a session tell; what was run for the prompt is the rest of it."""
    service.num_rows = 0
    async with dialing() as dialer:
        session = await dialer.open_verifier(Lease(service.endpoint), spec)
        length = len(spec.committed_token_ids)
        first = [verdict async for verdict in session.verify(VerifyRequest(1, length, Proposal()))]
        num_run = service.num_rows
        again = [verdict async for verdict in session.verify(VerifyRequest(2, length + 1, Proposal()))]
        await session.close()
    (cached_tokens,) = {verdict.cached_tokens for verdict in (*first, *again)}
    assert cached_tokens == min(length - num_run, len(spec.prompt_token_ids))
    return cached_tokens


def robbed(session: VerifySession, pool: PagePool) -> Verifying:
    """Run a session's prefill, take its pages, and run it again: then it shares what it has computed itself."""
    prefill = session.prefill()
    need = next(prefill)
    yield need
    pool.release(session.sequence)
    yield need
    assert next(prefill, None) is None


def test_what_was_run_lost_and_found_again_is_not_cached() -> None:
    model = KnownModel(64, seed=1)
    session = open_session(VerifySession, replace(SPEC, prompt_token_ids=PROMPT[:40]), model)
    run_task(model, robbed(session, model.pool))
    verdicts: list[Verdict] = []
    run_task(model, session.verify(VerifyRequest(1, 40, Proposal()), verdicts.append))
    assert [verdict.cached_tokens for verdict in verdicts] == [0]


async def test_it_is_what_was_not_run(verifier: Counting) -> None:
    assert await told_of(verifier, SPEC) == 0
    assert await told_of(verifier, SPEC) == 5 * BLOCK
    # The last token of a prompt and the one before are always run.
    assert await told_of(verifier, replace(SPEC, prompt_token_ids=PROMPT[: 2 * BLOCK])) == BLOCK
    assert await told_of(verifier, replace(SPEC, prompt_token_ids=(*PROMPT[: 3 * BLOCK], 5, *PROMPT))) == 3 * BLOCK
    assert await told_of(verifier, replace(SPEC, prompt_token_ids=PROMPT[:1])) == 0
    assert await told_of(verifier, replace(SPEC, cache_salt="other")) == 0
    # As after a failover, what is cached of the answer is no part of the prompt.
    assert await told_of(verifier, replace(SPEC, prompt_token_ids=PROMPT[:20], output_token_ids=PROMPT[20:22])) == BLOCK
    again = replace(SPEC, prompt_token_ids=PROMPT[:20], output_token_ids=PROMPT[20:], max_tokens=99)
    assert await told_of(verifier, again) == 20
    # Logits are not cached.
    assert await told_of(verifier, replace(SPEC, prompt_logprobs=0)) == 0
