"""Readers that are slow: how far behind they may fall, and what brings them back."""

import asyncio

import pytest

from orchestrator.api.read_pace import ReaderTooSlow, ReadPace

PACE, WINDOW_S = 5.0, 10.0


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    async def wait(self, seconds: float) -> None:
        self.now_s += seconds


async def num_taken(tokens: int, every_s: float, times: int = 100) -> int:
    """How many of so many messages a reader gets that takes one every so often."""
    clock = Clock()
    pace = ReadPace(PACE, WINDOW_S, clock)
    for number in range(times):
        try:
            await pace.write(clock.wait(every_s), tokens)
        except ReaderTooSlow:
            return number
    return times


async def test_who_keeps_the_pace_is_never_cut() -> None:
    assert await num_taken(tokens=1, every_s=0.2) == 100
    assert await num_taken(tokens=20, every_s=3.9) == 100


@pytest.mark.parametrize(("tokens", "every_s", "messages"), [(1, 3.0, 3), (4, 3.0, 4), (4, 5.0, 2), (1, 0.5, 33)])
async def test_who_takes_a_message_now_and_then_is_cut(tokens: int, every_s: float, messages: int) -> None:
    assert await num_taken(tokens, every_s) == messages


async def test_silence_is_cut_after_the_window() -> None:
    pace = ReadPace(PACE, 0.05)
    with pytest.raises(ReaderTooSlow, match=r"the reader fell 0\.05 s behind a pace of 5 tokens/s"):
        await pace.write(asyncio.sleep(60))


async def test_a_burst_earns_no_credit() -> None:
    clock = Clock()
    pace = ReadPace(PACE, WINDOW_S, clock)
    await pace.write(clock.wait(0.0), 1000)
    await pace.write(clock.wait(9.9), 0)
    with pytest.raises(ReaderTooSlow):
        await pace.write(asyncio.sleep(60), 0)
