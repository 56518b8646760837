"""Drafters that die, hang and come back: the stream goes on, with no gap and no repeat."""

import asyncio
import re
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import pytest

from specgate.errors import MISCONFIGURED, InvalidArgument, ServiceUnavailable, SpecgateError
from specgate.types import RoundPlan
from tests.support.decoding import make_spec
from tests.support.fake_fleet import FakeDialer
from tests.support.fakes import FakeDrafter, Fault
from tests.support.faults import HUNG_DRAFT, PATIENT, Run, drafter, exact, verifier
from tests.support.patience import eventually, patience

announcing = partial(FakeDrafter, agreement=0.8, announces=True)


@pytest.mark.parametrize(
    ("fault", "at"), [*product((Fault.DIE, Fault.NONSENSE), (0, 1, 4)), (Fault.HANG, 0), (Fault.HANG, 4)]
)
@pytest.mark.parametrize("gate", [None, 0.5])
@pytest.mark.parametrize("announces", [False, True])
async def test_drafter_fails_and_the_text_is_the_same(
    fault: Fault, at: int, gate: float | None, announces: bool
) -> None:
    """What it announced is used; that it is lost is then found out behind the request's back."""
    make = partial(FakeDrafter, agreement=0.8, announces=announces)
    dialer = FakeDialer(drafters=(partial(make, faults={at: fault}), make))
    one = await exact(Run(dialer, gate=gate, timeouts=HUNG_DRAFT if fault is Fault.HANG else PATIENT))
    assert one.session.stats.drafter_failures == one.drafters.num_failed == 1
    assert one.session.stats.verifier_failovers == 0
    assert sum(one.session.stats.prepared) >= (at if announces else 0)


@pytest.mark.parametrize("at", [0, 3])
async def test_what_a_hung_drafter_is_given_up_for_is_logged(at: int, caplog: pytest.LogCaptureFixture) -> None:
    """A TimeoutError says nothing by itself."""
    dialer = FakeDialer(drafters=(partial(FakeDrafter, agreement=0.8, faults={at: Fault.HANG}), announcing))
    await exact(Run(dialer, timeouts=HUNG_DRAFT))
    (told,) = caplog.messages
    reason = r"TimeoutError: no answer came within [\d.]+ s"
    assert re.fullmatch(rf"the target goes on without the drafter at fake:1: {reason}", told)


async def test_a_drafter_that_nobody_leases_is_logged_with_how_long_it_was_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = Run(FakeDialer(), timeouts=replace(PATIENT, connect_drafter_s=0.05))
    one.drafters.free = asyncio.Event()
    await one.drafter.open()
    await one.drafter.close()
    (told,) = caplog.messages
    assert told == "the target goes on without a drafter: ServiceUnavailable: no drafter was free within 0.05 s"


async def test_a_round_that_is_planned_while_a_lost_drafter_is_given_back_sees_that_another_may_come() -> None:
    class SlowToClose(FakeDrafter):
        async def close(self) -> None:
            await asyncio.sleep(0.3)
            await FakeDrafter.close(self)

    lost = partial(SlowToClose, agreement=0.8, announces=True, faults={2: Fault.DIE})
    dialer = FakeDialer(drafters=(lost, announcing), verifiers=(verifier(delay_s=0.01),))
    one = await exact(Run(dialer, make_spec(150)))
    assert dialer.opened_drafters[1].num_proposals > 3
    assert one.session.stats.drafter_failures == 1


async def test_late_answers_are_in_nobodys_way() -> None:
    """Rounds are told in order and with all that was committed, solo tokens too, and only misses are waited for."""
    dialer = FakeDialer(drafters=(partial(announcing, delay_s=0.02),), verifiers=(verifier(delay_s=0.001),))
    one = await exact(Run(dialer, gate=0.5))
    (only,) = dialer.opened_drafters
    assert tuple(only.told) == tuple(one.session.committed[: len(only.told)])
    assert len(only.told) > one.session.length - 12
    assert one.session.stats.drafter_failures == 0
    assert one.session.stats.solo_tokens > 0


async def test_closed_while_an_answer_is_late() -> None:
    one = Run(FakeDialer(drafters=(partial(announcing, faults={1: Fault.HANG}),)))
    await one.drafter.open()
    await one.drafter.draft(one.session.draft_request(RoundPlan(2)))
    assert (await one.drafter.draft(one.session.draft_request(RoundPlan(2)))).from_run_ahead
    waiting = asyncio.create_task(one.drafter.draft(one.session.draft_request(RoundPlan(2))))
    await asyncio.sleep(0.01)
    async with patience():
        await one.drafter.close()
        waiting.cancel()
        await asyncio.wait((waiting,))
    assert one.drafters.num_leased == 0


async def test_closed_while_it_waits_for_a_drafter() -> None:
    one = Run(FakeDialer())
    one.drafters.free = asyncio.Event()
    opening = asyncio.create_task(one.drafter.open())
    await asyncio.sleep(0.01)
    await one.drafter.close()
    one.drafters.free.set()
    await opening
    assert (one.dialer.num_drafter_dials, one.drafters.num_leased, one.session.stats.drafter_failures) == (0, 0, 0)


async def test_drafter_is_attached_again_in_mid_request() -> None:
    """The request goes on while it prefills, and it hears of all that was committed while there was none."""
    dialer = FakeDialer(
        drafters=(drafter(at2=Fault.DIE), ServiceUnavailable("still down"), partial(FakeDrafter, prefill_s=0.2)),
        verifiers=(verifier(delay_s=0.01),),
    )
    one = await exact(Run(dialer, make_spec(120)))
    first, second = dialer.opened_drafters
    assert first.num_proposals == 3
    assert second.num_proposals > 3
    assert second.spec.output_token_ids  # opened with what was committed by then
    assert second.told == one.session.committed[: len(second.told)]
    # The first question after the opening is one that nobody waits for.
    probe, asked = second.requests[:2]
    assert (probe.gamma, asked.position) == (1, probe.position + len(probe.token_ids))
    assert asked.token_ids
    assert one.session.stats.drafter_failures == 1


async def test_attaching_again_waits_longer_and_longer() -> None:
    times: list[float] = []

    class Watched(FakeDialer):
        async def open_drafter(self, lease, spec) -> tuple[FakeDrafter, int]:
            times.append(asyncio.get_running_loop().time())
            return await FakeDialer.open_drafter(self, lease, spec)

    drafters = (drafter(at0=Fault.DIE), ServiceUnavailable("down"))
    await Run(Watched(drafters=drafters, verifiers=(verifier(0.01),)), make_spec(100))()
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) >= 2
    assert all(gap >= 0.1 * 2**number - 0.01 for number, gap in enumerate(gaps[:5]))


async def test_stopped_drafter_is_a_dead_one() -> None:
    """It accepts, and never answers."""

    class Silent(FakeDialer):
        async def open_drafter(self, lease, spec) -> tuple[FakeDrafter, int]:
            await asyncio.Event().wait()
            raise AssertionError

    one = await exact(Run(Silent(), timeouts=replace(PATIENT, connect_drafter_s=0.05, open_s=3600.0)))
    assert one.session.stats.drafter_failures == 1
    assert one.drafters.num_failed >= 1


@pytest.mark.parametrize("kind", MISCONFIGURED)
async def test_misconfigured_drafter_is_told(kind: type[SpecgateError]) -> None:
    error = InvalidArgument("seed", "no") if kind is InvalidArgument else kind("no")
    with pytest.raises(kind):
        await Run(FakeDialer(drafters=(error,)))()


@pytest.mark.parametrize("announces", [False, True])
@pytest.mark.parametrize("gate", [None, 0.5])
async def test_a_text_longer_than_a_drafter_holds_is_drafted_from_its_end(announces: bool, gate: float | None) -> None:
    """And that is no fault. A session that is full is given back, and another one opened beside the target."""
    dialer = FakeDialer(drafters=(partial(FakeDrafter, agreement=0.8, announces=announces),), context_length=40)
    one = await exact(Run(dialer, make_spec(max_tokens=200), gate=gate))
    assert len(dialer.opened_drafters) > 2
    assert all(len(drafter.told) <= 40 for drafter in dialer.opened_drafters)
    assert sum(drafter.num_proposals for drafter in dialer.opened_drafters) > 20
    assert one.session.stats.drafter_failures == one.drafters.num_failed == 0


async def test_a_drafter_that_is_first_wanted_in_mid_request_is_opened_then_and_once() -> None:
    dialer = FakeDialer(drafters=(drafter(),))
    one = Run(dialer)
    assert not one.drafter.may_return
    one.drafter.want()
    one.drafter.want()
    # No back-off: nothing has failed yet, and no time passes in these turns of the loop.
    for _ in range(100):
        assert one.drafter.available or one.drafter.may_return
        await asyncio.sleep(0)
    assert one.drafter.available
    assert (dialer.num_drafter_dials, one.session.stats.drafter_failures) == (1, 0)
    await one.drafter.close()
    assert one.drafters.num_leased == 0


async def test_a_drafter_that_fits_no_request_is_told_of_once_and_tried_once() -> None:
    """First wanted in mid-request it breaks nothing off; nor is it asked again and again."""
    dialer = FakeDialer(drafters=(InvalidArgument("logit_bias", "too many"),))
    one = Run(dialer)
    one.drafter.want()
    await eventually(lambda: not one.drafter.may_return)
    assert (dialer.num_drafter_dials, one.session.stats.drafter_failures) == (1, 1)
    await one.drafter.close()
