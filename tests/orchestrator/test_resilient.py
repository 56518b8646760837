"""Services that die, hang and lie: the stream goes on, with no gap and no repeat."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from orchestrator.failover import MAX_FAILURES_WITHOUT_PROGRESS, FailoverVerifier
from orchestrator.fake_fleet import FakeDialer, FakePool, MakeDrafter, MakeVerifier
from orchestrator.fakes import FakeDrafter, FakeVerifier, Fault
from orchestrator.gate import AlwaysDraft, Policy, RoundPlan, TargetAlone, TargetConfidence, WithinLimits
from orchestrator.patience import MAX_STALLS, STALL_S, DraftPatience, Patience
from orchestrator.reattach import NoDrafter, ReattachingDrafter
from orchestrator.request import Delta
from orchestrator.session import Session
from orchestrator.timeouts import Timeouts
from specgate.errors import (
    InvalidArgument,
    NonFiniteLogits,
    OutOfSync,
    ServiceUnavailable,
    SpecgateError,
    TokenizerMismatch,
    TooManySessions,
    UnsupportedArchitecture,
)
from specgate.types import DraftRequest, Proposal, SessionSpec, SparseDistribution, Verdict, Verification
from tests.orchestrator.support import emitted, make_session, make_spec, run, target_alone

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
        self.verifier = FailoverVerifier(self.verifiers, dialer, self.session, timeouts)
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


def drafter(agreement: float = 0.8, **faults: Fault) -> MakeDrafter:
    """Keyword arguments are at<number of proposals>=fault."""
    by_number = {int(name.removeprefix("at")): fault for name, fault in faults.items()}
    return partial(FakeDrafter, agreement=agreement, faults=by_number)


def verifier(delay_s: float = 0.0, **faults: Fault) -> MakeVerifier:
    by_number = {int(name.removeprefix("at")): fault for name, fault in faults.items()}
    return partial(FakeVerifier, delay_s=delay_s, faults=by_number)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("gate", [None, 0.5])
async def test_drafter_fails_and_the_text_is_the_same(fault: Fault, at: int, gate: float | None) -> None:
    dialer = FakeDialer(drafters=(drafter(**{f"at{at}": fault}), drafter()))
    one = Run(dialer, gate=gate, timeouts=HUNG_DRAFT if fault is Fault.HANG else PATIENT)
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.drafter_failures == one.drafters.num_failed == 1
    assert one.session.stats.verifier_failovers == 0


announcing = partial(FakeDrafter, agreement=0.8, announces=True)


@pytest.mark.parametrize("fault", [None, *Fault])
@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("gate", [None, 0.5])
async def test_a_drafter_that_announces_and_then_fails(fault: Fault | None, at: int, gate: float | None) -> None:
    """What it announced is used; that it is lost is found out behind the request's back."""
    faults = {at: fault} if fault is not None else {}
    dialer = FakeDialer(drafters=(partial(announcing, faults=faults), announcing))
    one = Run(dialer, gate=gate, timeouts=HUNG_DRAFT if fault is Fault.HANG else PATIENT)
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.drafter_failures == one.drafters.num_failed == len(faults)
    assert sum(one.session.stats.prepared) >= at


async def test_a_round_that_is_planned_while_a_lost_drafter_is_given_back_sees_that_another_may_come() -> None:
    class SlowToClose(FakeDrafter):
        async def close(self) -> None:
            await asyncio.sleep(0.3)
            await FakeDrafter.close(self)

    lost = partial(SlowToClose, agreement=0.8, announces=True, faults={2: Fault.DIE})
    dialer = FakeDialer(drafters=(lost, announcing), verifiers=(verifier(delay_s=0.01),))
    one = Run(dialer, make_spec(150))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert dialer.opened_drafters[1].num_proposals > 3
    assert one.session.stats.drafter_failures == 1


async def test_late_answers_are_in_nobodys_way() -> None:
    """Rounds are told in order and with all that was committed, solo tokens too, and only misses are waited for."""
    dialer = FakeDialer(drafters=(partial(announcing, delay_s=0.02),), verifiers=(verifier(delay_s=0.001),))
    one = Run(dialer, gate=0.5)
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    (only,) = dialer.opened_drafters
    assert tuple(only.told) == tuple(one.session.committed[: len(only.told)])
    assert len(only.told) > one.session.length - 12
    assert one.session.stats.drafter_failures == 0
    assert one.session.stats.solo_tokens > 0


async def test_what_was_announced_teaches_no_impatience() -> None:
    """A hit takes no time; how long a draft takes is told by its answer."""
    timeouts = replace(PATIENT, first_draft_s=5.0, draft_floor_s=0.05)
    one = Run(FakeDialer(drafters=(partial(announcing, delay_s=0.04),)), make_spec(40), timeouts=timeouts)
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.drafter_failures == 0


async def test_closed_while_an_answer_is_late() -> None:
    dialer = FakeDialer(drafters=(partial(announcing, faults={1: Fault.HANG}),))
    one = Run(dialer)
    await one.drafter.open()
    await one.drafter.draft(one.session.draft_request(AlwaysDraft(2).plan(one.session)))
    announced = await one.drafter.draft(one.session.draft_request(AlwaysDraft(2).plan(one.session)))
    assert announced.from_run_ahead
    waiting = asyncio.create_task(one.drafter.draft(one.session.draft_request(AlwaysDraft(2).plan(one.session))))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await one.drafter.close()
        waiting.cancel()
        await asyncio.wait((waiting,))
    assert one.drafters.num_leased == 0


async def test_drafter_is_attached_again_in_mid_request() -> None:
    """And hears of all that was committed while there was none."""
    dialer = FakeDialer(
        drafters=(drafter(at2=Fault.DIE), ServiceUnavailable("still down"), drafter()),
        verifiers=(verifier(delay_s=0.01),),
    )
    one = Run(dialer, make_spec(100))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    first, second = dialer.opened_drafters
    assert first.num_proposals == 3
    assert second.num_proposals > 3
    assert second.spec.output_token_ids  # opened with what was committed by then
    assert (
        tuple(second.told)
        == one.session.opening_spec.prompt_token_ids
        + one.session.output_token_ids[: len(second.told) - one.session.num_prompt_tokens]
    )
    # The first question after the opening is one that nobody waits for.
    assert second.requests[0].gamma == 1
    assert one.session.stats.drafter_failures == 1


async def test_request_goes_on_while_a_new_drafter_prefills() -> None:
    """And the drafter then hears of what was committed meanwhile."""
    dialer = FakeDialer(
        drafters=(drafter(at2=Fault.DIE), partial(FakeDrafter, prefill_s=0.2)), verifiers=(verifier(delay_s=0.01),)
    )
    one = Run(dialer, make_spec(100))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    probe, first = dialer.opened_drafters[1].requests[:2]
    assert first.token_ids
    assert first.position == probe.position + len(probe.token_ids)
    assert dialer.opened_drafters[1].num_proposals > 3
    assert one.session.stats.drafter_failures == 1


async def test_attaching_again_waits_longer_and_longer() -> None:
    times: list[float] = []

    class Watched(FakeDialer):
        async def open_drafter(self, lease, spec) -> FakeDrafter:
            times.append(asyncio.get_running_loop().time())
            return await FakeDialer.open_drafter(self, lease, spec)

    drafters = (drafter(at0=Fault.DIE), ServiceUnavailable("down"))
    await Run(Watched(drafters=drafters, verifiers=(verifier(0.01),)), make_spec(100))()
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) >= 2
    assert all(gap >= 0.1 * 2**number - 0.01 for number, gap in enumerate(gaps[:5]))


async def test_drafter_pool_that_is_down_at_the_start() -> None:
    one = Run(FakeDialer(verifiers=(verifier(delay_s=0.01),)), make_spec(80))
    one.drafters.up = False
    asyncio.get_running_loop().call_later(0.05, setattr, one.drafters, "up", True)
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.drafter_failures == 1
    assert one.session.stats.accepted > 0


class SilentDialer(FakeDialer):
    """Its drafters are stopped processes: they accept and never answer."""

    async def open_drafter(self, lease, spec) -> FakeDrafter:
        await asyncio.Event().wait()
        raise AssertionError


async def test_stopped_drafter_is_a_dead_one() -> None:
    one = Run(SilentDialer(), timeouts=replace(PATIENT, connect_drafter_s=0.05, open_s=3600.0))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.drafter_failures == 1
    assert one.drafters.num_failed >= 1


@pytest.mark.parametrize(
    "error", [InvalidArgument("seed", "no"), TokenizerMismatch("merges"), UnsupportedArchitecture("no")]
)
async def test_misconfigured_drafter_is_told(error: SpecgateError) -> None:
    with pytest.raises(type(error)):
        await Run(FakeDialer(drafters=(error,)))()


async def test_no_session_past_the_draft_models_context() -> None:
    dialer = FakeDialer(context_length=3)
    one = Run(dialer)
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert dialer.num_drafter_dials == 0
    assert one.session.stats.drafter_failures == 0


async def test_session_is_given_back_at_the_draft_models_context() -> None:
    dialer = FakeDialer(context_length=20)
    one = Run(dialer)
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert len(dialer.opened_drafters[0].told) <= 20
    assert one.session.stats.drafter_failures == one.drafters.num_failed == 0
    assert not one.drafter.available
    assert not one.drafter.may_return


async def test_request_ends_while_a_drafter_is_looked_for() -> None:
    one = Run(FakeDialer(drafters=(ServiceUnavailable("down"),)), make_spec(3))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert not one.drafter.may_return


def distribution(*ids: int, probs: tuple[float, ...] | None = None) -> SparseDistribution:
    return SparseDistribution(ids, probs or (1.0,) * len(ids))


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(()),
        Proposal((1, 2, 3, 4, 5)),
        Proposal((97,)),
        Proposal((-1,)),
        Proposal((1,), (distribution(1, 2),)),
    ],
)
async def test_what_cannot_be_a_proposal(proposal: Proposal) -> None:
    one = await lying_drafter(proposal, make_spec(60))
    assert one.session.stats.drafter_failures == 1


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal((1,)),
        Proposal((1, 2), (distribution(1, 2),)),
        Proposal((3,), (distribution(1, 2),)),
        Proposal((1,), (distribution(1, 1),)),
        Proposal((1,), (distribution(1, 97),)),
        Proposal((1,), (distribution(1, 2, probs=(0.5,)),)),
        Proposal((1,), (distribution(1, 2, probs=(0.5, 0.0)),)),
        Proposal((1,), (distribution(1, 2, probs=(0.5, float("nan"))),)),
        Proposal((1,), (distribution(1, 2, probs=(0.5, float("inf"))),)),
    ],
)
async def test_what_cannot_be_a_proposal_in_rejection_mode(proposal: Proposal) -> None:
    spec = make_spec(60, verification=Verification.REJECTION, temperature=1.0)
    one = await lying_drafter(proposal, spec)
    assert one.session.stats.drafter_failures == 1


async def test_what_can_be_a_proposal_in_rejection_mode() -> None:
    spec = make_spec(60, verification=Verification.REJECTION, temperature=1.0)
    one = await lying_drafter(Proposal((1,), (distribution(1, 2, probs=(0.5, 3.0)),)), spec)
    assert one.session.stats.drafter_failures == 0


async def lying_drafter(proposal: Proposal, spec: SessionSpec) -> Run:
    class Liar(FakeDrafter):
        async def draft(self, request: DraftRequest) -> Proposal:
            return proposal if request.gamma else Proposal()

    one = Run(FakeDialer(drafters=(Liar,)), spec)
    assert emitted(await one()) == target_alone(spec)
    return one


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("at", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("gate", [None, 0.5, 1.0])
async def test_verifier_fails_and_another_goes_on(fault: Fault, at: int, gate: float | None) -> None:
    """Before, between and inside rounds: no gap, no repeat."""
    dialer = FakeDialer(verifiers=(verifier(**{f"at{at}": fault}), verifier()))
    one = Run(dialer, gate=gate, timeouts=HUNG_VERDICT if fault is Fault.HANG else PATIENT)
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    first, second = dialer.opened_verifiers
    assert second.spec.output_token_ids == tuple(first.committed[3 : len(second.spec.committed_token_ids)])
    assert one.session.stats.verifier_failovers == one.verifiers.num_failed == 1
    assert one.session.stats.drafter_failures == 0


async def test_the_target_alone_fails_over_inside_its_one_round() -> None:
    dialer = FakeDialer(verifiers=(verifier(at7=Fault.DIE), verifier(at5=Fault.HANG), verifier()))
    one = Run(dialer, timeouts=HUNG_VERDICT)
    one.policy, one.drafter = TargetAlone(), NoDrafter()  # type: ignore[assignment]
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.verifier_failovers == 2


async def test_both_fail() -> None:
    dialer = FakeDialer(
        drafters=(drafter(at1=Fault.DIE), drafter(at2=Fault.HANG), drafter()),
        verifiers=(verifier(0.01, at3=Fault.DIE), verifier(0.01, at9=Fault.NONSENSE), verifier(0.01)),
    )
    one = Run(dialer, make_spec(120), gate=0.5, timeouts=HUNG_DRAFT)
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.verifier_failovers == 2


async def test_out_of_sync_is_opened_anew() -> None:
    class Forgetful(FakeVerifier):
        async def verify(self, request):
            if self.num_verdicts == 2:
                raise OutOfSync("what was I saying?")
            async for verdict in FakeVerifier.verify(self, request):
                yield verdict

    one = Run(FakeDialer(verifiers=(Forgetful, verifier())))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
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


async def test_another_verifier_comes_up_in_time() -> None:
    one = Run(FakeDialer(verifiers=(verifier(at3=Fault.DIE), ServiceUnavailable("loading"), verifier())))
    assert emitted(await one()) == target_alone(one.session.opening_spec)


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
    one = Run(FakeDialer(verifiers=(*[verifier(at2=Fault.DIE)] * deaths, verifier())))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.verifier_failovers == deaths


@pytest.mark.parametrize("error", [InvalidArgument("max_tokens", "no"), TokenizerMismatch("merges")])
async def test_refused_request_is_not_repeated(error: SpecgateError) -> None:
    dialer = FakeDialer(verifiers=(error,))
    with pytest.raises(type(error)):
        await Run(dialer)()
    assert dialer.num_verifier_dials == 1


@pytest.mark.parametrize("error", [TooManySessions("full"), ServiceUnavailable("draining")])
async def test_full_or_draining_verifier_is_passed_over(error: SpecgateError) -> None:
    one = Run(FakeDialer(verifiers=(error, error, verifier())))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.verifier_failovers == 0


async def test_full_verifiers_are_told() -> None:
    dialer = FakeDialer(verifiers=(TooManySessions("full"),))
    with pytest.raises(TooManySessions):
        await Run(dialer)()
    assert dialer.num_verifier_dials == MAX_FAILURES_WITHOUT_PROGRESS


async def test_no_verifier_at_the_start() -> None:
    one = Run(FakeDialer())
    one.verifiers.up = False
    with pytest.raises(ServiceUnavailable):
        await one()


GOOD = Verdict(1, 0, 5, confidence=0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 2},
        {"num_accepted": 5},
        {"num_accepted": -1},
        {"token_id": 97},
        {"token_id": -1},
        {"token_id": None},
        {"token_id": None, "num_accepted": 2},
        {"confidence": float("nan")},
        {"confidence": 1.5},
        {"solo": True},
    ],
    ids=str,
)
async def test_what_cannot_be_a_verdict(changes: dict[str, object]) -> None:
    class Liar(FakeVerifier):
        async def verify(self, request):
            yield replace(GOOD, **changes)

    one = Run(FakeDialer(verifiers=(Liar, verifier())))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.verifier_failovers == 1


async def test_verdicts_without_the_logprobs_asked_for() -> None:
    dialer = FakeDialer()
    with pytest.raises(SpecgateError, match="log-probabilities"):
        await Run(dialer, make_spec(60, logprobs=2))()


async def test_round_without_a_last_verdict() -> None:
    class Trailing(FakeVerifier):
        async def verify(self, request):
            async for verdict in FakeVerifier.verify(self, request):
                yield replace(verdict, last=False)

    one = Run(FakeDialer(verifiers=(Trailing, verifier())))
    assert emitted(await one()) == target_alone(one.session.opening_spec)


async def test_verifier_that_ends_too_soon_is_replaced() -> None:
    class Hasty(FakeVerifier):
        async def verify(self, request):
            async for verdict in FakeVerifier.verify(self, request):
                yield replace(verdict, last=True, finish_reason="stop")

    one = Run(FakeDialer(verifiers=(Hasty, verifier())))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    assert one.session.stats.verifier_failovers == 1


async def test_verifiers_that_hang_at_the_opening_leave_time_for_others() -> None:
    class Slow(FakeDialer):
        async def open_verifier(self, lease, spec) -> FakeVerifier:
            if self.num_verifier_dials == 1:
                self.num_verifier_dials += 1
                await asyncio.Event().wait()
            return await FakeDialer.open_verifier(self, lease, spec)

    dialer = Slow(verifiers=(verifier(at3=Fault.DIE), verifier()))
    one = Run(dialer, timeouts=Timeouts(failover_s=1.5))
    assert emitted(await one()) == target_alone(one.session.opening_spec)
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
        async def close(self) -> None:
            self.closed = True
            waiting.set()

        async def verify(self, request):
            await waiting.wait()
            raise ServiceUnavailable("closed on our side")
            yield

    waiting = asyncio.Event()
    dialer = FakeDialer(verifiers=(Closable,))
    one = Run(dialer)
    async with hanging(one) as task:
        await one.verifier.close()
    assert isinstance(task.exception(), ServiceUnavailable)
    assert dialer.num_verifier_dials == 1


async def test_patience() -> None:
    times = iter([0.0, 9.0, 10.0, 10.5, 11.0, 11.1])
    patience = Patience(first_s=30.0, floor_s=1.0, factor=10.0, clock=lambda: next(times))

    async def answer() -> int:
        return 1

    assert patience.limit_s == 30.0
    await patience.wait(answer())
    assert patience.limit_s == 1.0  # the first answer has a prefill in it
    await patience.wait(answer())
    assert patience.limit_s == 5.0
    await patience.wait(answer())
    assert patience.limit_s == 5.0


ASKED = DraftRequest(1, 0, (1, 2), gamma=8)


async def test_patience_with_drafts_learns_from_those_that_were_not_prepared() -> None:
    now_s = 0.0
    patience = DraftPatience(first_s=30.0, floor_s=1.0, factor=10.0, clock=lambda: now_s)

    async def drafted(num_tokens: int, num_prepared: int, seconds: float, draft_us: int = 300_000) -> None:
        async def draft() -> Proposal:
            nonlocal now_s
            now_s += seconds
            return Proposal((7,) * num_tokens, draft_us=draft_us, num_prepared=num_prepared)

        await patience.wait(draft(), ASKED)

    assert patience.limit_s(10) == 30.0
    await drafted(4, 0, 9.0)
    assert patience.limit_s(12) == pytest.approx(6.0)  # 0.3 s for 2 + 4 tokens: a prefill is before the first draft
    assert patience.limit_s(1) == pytest.approx(3.0)  # what does not grow with the tokens may be all of it
    await drafted(8, 8, 8.0)
    assert patience.limit_s(12) == pytest.approx(6.0)
    await drafted(4, 3, 0.5)
    assert patience.limit_s(1) == pytest.approx(5.0)
    assert patience.limit_s(12) == pytest.approx(6.0)
    await drafted(2, 0, 0.4)
    assert patience.limit_s(12) == pytest.approx(12.0)
    assert patience.limit_s(64) == 30.0


@pytest.mark.parametrize(("num_prepared", "draft_us"), [(4, 900_000), (0, 0)])
async def test_an_answer_that_tells_nothing_teaches_no_impatience(num_prepared: int, draft_us: int) -> None:
    patience = DraftPatience(first_s=30.0, floor_s=1.0, factor=10.0)

    async def draft() -> Proposal:
        return Proposal((7,) * 4, draft_us=draft_us, num_prepared=num_prepared)

    await patience.wait(draft(), ASKED)
    assert patience.limit_s(1) == 30.0


async def test_a_slow_drafter_is_not_taken_for_a_hung_one() -> None:
    """Short drafts come soon; a long one may take as long as all its tokens."""
    timeouts = replace(PATIENT, first_draft_s=5.0, draft_floor_s=0.02)
    one = Run(FakeDialer(drafters=(partial(FakeDrafter, token_s=0.01),)), make_spec(60), timeouts=timeouts)
    await one.drafter.open()
    for gamma in (1, 2, 1, 32):
        assert len(await one.drafter.draft(one.session.draft_request(RoundPlan(gamma)))) == gamma
    await one.drafter.close()
    assert one.session.stats.drafter_failures == 0


async def test_patience_ends() -> None:
    with pytest.raises(TimeoutError):
        await Patience(0.01, 0.01, 1.0).wait(asyncio.Event().wait())


async def test_time_in_which_the_loop_was_kept_is_no_fault_of_who_answers() -> None:
    """A reader that blocks, a slow console for one, must not cost the request its drafter."""
    arrived = asyncio.get_running_loop().create_future()

    async def answer() -> str:
        return str(await arrived)

    waiting = asyncio.create_task(Patience(0.2, 0.2, 1.0).wait(answer()))
    await asyncio.sleep(0)
    threading.Timer(0.1, arrived.get_loop().call_soon_threadsafe, (arrived.set_result, "here")).start()
    time.sleep(0.5)  # noqa: ASYNC251
    assert await waiting == "here"


async def test_a_loop_that_is_kept_again_and_again_does_not_wait_for_ever() -> None:
    waiting = asyncio.create_task(Patience(0.01, 0.01, 1.0).wait(asyncio.Event().wait()))
    for _ in range(MAX_STALLS + 10):
        await asyncio.sleep(0)
        time.sleep(STALL_S + 0.02)  # noqa: ASYNC251
    assert isinstance(waiting.exception(), TimeoutError)
