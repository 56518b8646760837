"""Silence is taken for death late enough, and soon enough."""

import asyncio
import threading
import time

import pytest

from orchestrator.services.deadlines import MAX_STALLS, STALL_S, Deadline, DraftDeadline
from specgate.types import DraftRequest, Proposal


async def test_patience() -> None:
    times = iter([0.0, 9.0, 10.0, 10.5, 11.0, 11.1])
    patience = Deadline(first_s=30.0, floor_s=1.0, factor=10.0, clock=lambda: next(times))

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
    patience = DraftDeadline(first_s=30.0, floor_s=1.0, factor=10.0, clock=lambda: now_s)

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
    patience = DraftDeadline(first_s=30.0, floor_s=1.0, factor=10.0)

    async def draft() -> Proposal:
        return Proposal((7,) * 4, draft_us=draft_us, num_prepared=num_prepared)

    await patience.wait(draft(), ASKED)
    assert patience.limit_s(1) == 30.0


async def test_patience_ends() -> None:
    with pytest.raises(TimeoutError):
        await Deadline(0.01, 0.01, 1.0).wait(asyncio.Event().wait())


async def test_patience_with_a_draft_ends_when_it_is_known_how_long_one_takes() -> None:
    patience = DraftDeadline(first_s=0.5, floor_s=0.01, factor=1.0)

    async def draft(never: asyncio.Event | None = None) -> Proposal:
        if never is not None:
            await never.wait()
        return Proposal((7,) * 4, draft_us=1000)

    await patience.wait(draft(), ASKED)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        await patience.wait(draft(asyncio.Event()), ASKED)


async def test_time_in_which_the_loop_was_kept_is_no_fault_of_who_answers() -> None:
    """A reader that blocks, a slow console for one, must not cost the request its drafter."""
    arrived = asyncio.get_running_loop().create_future()

    async def answer() -> str:
        told = str(await arrived)
        # It is read in a few turns of the loop.
        for _ in range(5):
            await asyncio.sleep(0)
        return told

    waiting = asyncio.create_task(Deadline(0.2, 0.2, 1.0).wait(answer()))
    await asyncio.sleep(0)
    threading.Timer(0.1, arrived.get_loop().call_soon_threadsafe, (arrived.set_result, "here")).start()
    time.sleep(0.5)  # noqa: ASYNC251
    assert await waiting == "here"


async def test_a_loop_that_is_kept_again_and_again_does_not_wait_for_ever() -> None:
    waiting = asyncio.create_task(Deadline(0.01, 0.01, 1.0).wait(asyncio.Event().wait()))
    for _ in range(MAX_STALLS + 10):
        await asyncio.sleep(0)
        time.sleep(STALL_S + 0.02)  # noqa: ASYNC251
    assert isinstance(waiting.exception(), TimeoutError)
