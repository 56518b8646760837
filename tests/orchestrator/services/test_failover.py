"""Verifiers that die and hang: another one goes on where the last one stood, with no gap and no repeat."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from orchestrator.decode.request import Delta
from orchestrator.services.failover import MAX_FAILURES_WITHOUT_PROGRESS
from orchestrator.services.timeouts import Timeouts
from specgate.errors import (
    InvalidArgument,
    NonFiniteLogits,
    OutOfSync,
    ServiceUnavailable,
    SessionIdle,
    SpecgateError,
    TokenizerMismatch,
    TooManySessions,
)
from specgate.types import FinishReason, Proposal, SessionSpec, VerifyRequest
from tests.support.fake_fleet import FakeDialer
from tests.support.fakes import FakeVerifier, Fault
from tests.support.faults import HUNG_VERDICT, PATIENT, Run, exact, verifier
from tests.support.patience import patience


@pytest.mark.parametrize(
    ("fault", "at"), [*product((Fault.DIE, Fault.NONSENSE), (0, 1, 2, 5, 9)), (Fault.HANG, 0), (Fault.HANG, 5)]
)
@pytest.mark.parametrize("gate", [None, 0.5, 1.0])
async def test_verifier_fails_and_another_goes_on(fault: Fault, at: int, gate: float | None) -> None:
    """Before, between and inside rounds: no gap, no repeat."""
    dialer = FakeDialer(verifiers=(verifier(**{f"at{at}": fault}), verifier()))
    one = await exact(Run(dialer, gate=gate, timeouts=HUNG_VERDICT if fault is Fault.HANG else PATIENT))
    first, second = dialer.opened_verifiers
    assert second.spec.output_token_ids == tuple(first.committed[3 : len(second.spec.committed_token_ids)])
    assert one.session.stats.verifier_failovers == one.verifiers.num_failed == 1
    assert one.session.stats.drafter_failures == 0


@pytest.mark.parametrize(("at", "cached_tokens"), [(0, 1), (5, 2)], ids=["before a token", "in mid-request"])
async def test_what_is_cached_of_the_prompt_is_told_by_who_read_it(at: int, cached_tokens: int) -> None:
    def make(cached_tokens: int, faults: dict[int, Fault]) -> Callable[[SessionSpec], FakeVerifier]:
        return partial(FakeVerifier, cached_tokens=cached_tokens, faults=faults)

    one = Run(FakeDialer(verifiers=(make(2, {at: Fault.DIE}), make(1, {}))))
    deltas = await one()
    assert one.session.stats.verifier_failovers == 1
    assert one.session.stats.cached_tokens == cached_tokens
    assert [delta.cached_tokens for delta in deltas] == [cached_tokens] + [0] * (len(deltas) - 1)


async def test_whoever_counts_sessions_is_told_of_each_verifier() -> None:
    one = await exact(Run(FakeDialer(verifiers=(verifier(at5=Fault.DIE), verifier()))))
    assert len(one.attached) == 2


def broken(error: SpecgateError | None = None, after: int = 0, **changes: object) -> type[FakeVerifier]:
    """A verifier that raises ``error`` after so many verdicts, and whose verdicts have ``changes``."""

    class Broken(FakeVerifier):
        async def verify(self, request):
            if error is not None and self.num_verdicts == after:
                raise error
            async for verdict in FakeVerifier.verify(self, request):
                yield replace(verdict, **changes)

    return Broken


@pytest.mark.parametrize(
    "make",
    [broken(OutOfSync("lost count"), after=2), broken(last=False), broken(last=True, finish_reason=FinishReason.STOP)],
    ids=["out of sync", "no last verdict", "ends too soon"],
)
async def test_a_verifier_that_breaks_the_contract_is_replaced(make: type[FakeVerifier]) -> None:
    one = await exact(Run(FakeDialer(verifiers=(make, verifier()))))
    assert one.session.stats.verifier_failovers == 1


async def test_last_verifier_is_lost() -> None:
    timeouts = Timeouts(failover_s=0.5)
    one = Run(FakeDialer(verifiers=(verifier(at3=Fault.DIE), ServiceUnavailable("gone"))), timeouts=timeouts)
    start = asyncio.get_running_loop().time()
    with pytest.raises(ServiceUnavailable) as caught:
        await one()
    assert asyncio.get_running_loop().time() - start < 5.0
    assert f"after {len(one.session.output_token_ids)} emitted tokens" in str(caught.value)
    assert one.session.output_token_ids
    assert one.session.stats.verifier_failovers == 0


async def test_the_error_names_its_cause_where_the_pool_waits_to_the_end() -> None:
    free = asyncio.Event()
    free.set()

    class Last(FakeVerifier):
        async def verify(self, request):
            free.clear()
            raise ServiceUnavailable("the socket is closed")
            yield

    one = Run(FakeDialer(verifiers=(Last,)), timeouts=Timeouts(failover_s=0.3))
    one.verifiers.free = free
    with pytest.raises(ServiceUnavailable, match=r"\(the socket is closed\), .* within 0\.3 s: none was ready"):
        await one()


async def test_a_verifier_that_ended_an_idle_session_is_well() -> None:
    one = await exact(Run(FakeDialer(verifiers=(broken(SessionIdle("nothing came for 60 s")), verifier()))))
    assert (one.session.stats.verifier_failovers, one.verifiers.num_failed) == (1, 0)


async def test_request_that_kills_every_verifier_stops_killing() -> None:
    class Poisoned(FakeVerifier):
        async def verify(self, request):
            if self.spec.output_token_ids or self.num_verdicts == 3:
                raise NonFiniteLogits("NaN")
            async for verdict in FakeVerifier.verify(self, request):
                yield verdict

    dialer = FakeDialer(verifiers=(Poisoned,))
    with pytest.raises(NonFiniteLogits):
        await Run(dialer)()
    assert len(dialer.opened_verifiers) == MAX_FAILURES_WITHOUT_PROGRESS


async def test_every_verifier_that_gets_further_counts_as_progress() -> None:
    deaths = 2 * MAX_FAILURES_WITHOUT_PROGRESS
    one = await exact(Run(FakeDialer(verifiers=(*[verifier(at2=Fault.DIE)] * deaths, verifier()))))
    assert one.session.stats.verifier_failovers == deaths


@pytest.mark.parametrize(
    ("error", "num_dials"),
    [
        (InvalidArgument("max_tokens", "no"), 1),
        (TokenizerMismatch("merges"), 1),
        (TooManySessions("full"), MAX_FAILURES_WITHOUT_PROGRESS),
    ],
)
async def test_refused_request_is_not_repeated_and_a_full_verifier_is_told(
    error: SpecgateError, num_dials: int
) -> None:
    dialer = FakeDialer(verifiers=(error,))
    with pytest.raises(type(error)):
        await Run(dialer)()
    assert dialer.num_verifier_dials == num_dials


@pytest.mark.parametrize("error", [TooManySessions("full"), ServiceUnavailable("draining")])
async def test_full_or_draining_verifier_is_passed_over(error: SpecgateError) -> None:
    """At the opening, and in the middle of a request."""
    one = await exact(Run(FakeDialer(verifiers=(error, error, verifier()))))
    assert one.session.stats.verifier_failovers == 0
    one = await exact(Run(FakeDialer(verifiers=(verifier(at3=Fault.DIE), error, verifier()))))
    assert one.session.stats.verifier_failovers == 1


@pytest.mark.parametrize("error", [TooManySessions("full"), ServiceUnavailable("draining")])
async def test_a_new_request_waits_for_as_long_as_one_wait_in_all(error: SpecgateError) -> None:
    """However often it begins anew; and the cause is told."""
    free = asyncio.Event()
    free.set()

    def refuse(spec: SessionSpec) -> FakeVerifier:
        free.clear()
        raise error

    one = Run(FakeDialer(verifiers=(refuse,)), timeouts=Timeouts(failover_s=0.2, open_s=0.1))
    one.verifiers.free = free
    async with patience():
        with pytest.raises(type(error), match=rf"^no verifier took the request within 0\.3 s: {error}$"):
            await one()


async def test_verifiers_that_hang_at_the_opening_leave_time_for_others() -> None:
    class Slow(FakeDialer):
        async def open_verifier(self, lease, spec) -> FakeVerifier:
            if self.num_verifier_dials == 1:
                self.num_verifier_dials += 1
                await asyncio.Event().wait()
            return await FakeDialer.open_verifier(self, lease, spec)

    dialer = Slow(verifiers=(verifier(at3=Fault.DIE), verifier()))
    one = await exact(Run(dialer, timeouts=Timeouts(failover_s=1.5)))
    assert one.verifiers.num_failed == 2


@asynccontextmanager
async def hanging(one: Run) -> AsyncIterator[asyncio.Task[Sequence[Delta]]]:
    task = asyncio.create_task(one())
    await asyncio.sleep(0.05)
    yield task
    await asyncio.wait((task,))


async def test_cancelled_request_gives_everything_back() -> None:
    one = Run(FakeDialer(verifiers=(verifier(at2=Fault.HANG),)))
    async with hanging(one) as task:
        task.cancel()
    assert task.cancelled()
    assert one.verifiers.num_failed == 0


async def test_closed_from_another_task() -> None:
    """The verifier is not replaced for what our own closing broke."""

    class Closable(FakeVerifier):
        async def verify(self, request):
            while not self.closed:  # noqa: ASYNC110 - a plain flag
                await asyncio.sleep(0.01)
            raise ServiceUnavailable("closed on our side")
            yield

    one = Run(FakeDialer(verifiers=(Closable,)))
    async with hanging(one) as task:
        await one.verifier.close()
    assert isinstance(task.exception(), ServiceUnavailable)
    assert one.dialer.num_verifier_dials == 1


async def test_closed_while_its_task_is_elsewhere() -> None:
    """No verifier is opened for a request that nobody wants any more."""
    one = Run(FakeDialer())
    await one.verifier.open()
    await one.verifier.close()
    with pytest.raises(ServiceUnavailable, match="closed"):
        await anext(one.verifier.verify(VerifyRequest(1, one.session.length, Proposal())))
    with pytest.raises(ServiceUnavailable, match="closed"):
        await one.verifier.open()
    assert one.dialer.num_verifier_dials == 1


async def test_closed_while_it_waits_for_a_verifier() -> None:
    """Its place in the queue is given back, and no session is opened that nobody wants."""
    one = Run(FakeDialer())
    one.verifiers.free = asyncio.Event()
    async with hanging(one) as task:
        await one.verifier.close()
        async with patience():
            await asyncio.wait((task,))
    with pytest.raises(ServiceUnavailable, match="closed"):
        task.result()
    assert one.dialer.num_verifier_dials == 0


async def test_closed_while_another_one_is_looked_for() -> None:
    one = Run(FakeDialer(verifiers=(verifier(at2=Fault.DIE), ServiceUnavailable("down"))))
    async with hanging(one) as task:
        await one.verifier.close()
    with pytest.raises(ServiceUnavailable, match="closed"):
        task.result()
