"""A long prompt among streaming sessions: who is watched, and from when."""

import pytest

from orchestrator.bench.load.levels import Speculation
from orchestrator.bench.load.neighbour import NEWCOMER_TOKENS, Beside, measure_neighbours, newcomer_of, stream_beside
from specgate.errors import TooManySessions
from tests.orchestrator.bench.load.support import FakeStart, Ticks, a_request, a_trace
from tests.support.fakes import FakeVerifier


def test_only_gaps_that_end_after_all_were_under_way_count() -> None:
    early = a_trace(0.0, (1.0, 1), (9.0, 1), (10.0, 1), (12.0, 1))
    other = a_trace(0.0, (9.5, 1), (10.5, 1))
    assert Beside((early, other), watched_from_s=9.5).longest_gap_s == 2.0
    assert Beside((early, other), watched_from_s=0.5).longest_gap_s == 8.0
    assert Beside((a_trace(0.0, (1.0, 4)),), watched_from_s=1.0).longest_gap_s == 0.0


def test_how_many_sessions_outlive_the_wait_for_the_newcomers_first_token() -> None:
    sessions = (a_trace(0.0, (1.0, 1), (5.0, 1)), a_trace(0.0, (1.0, 1), (9.0, 1)))
    assert Beside(sessions, 1.0, a_trace(2.0, (6.0, 1))).num_still_streaming == 1
    assert Beside(sessions, 1.0, a_trace(2.0, (10.0, 1))).num_still_streaming == 0
    assert Beside(sessions, 1.0).num_still_streaming == 0


def test_the_newcomers_prompt_is_of_the_length_asked_for() -> None:
    requests = [a_request((1, 2, 3), max_tokens=64), a_request((4, 5), max_tokens=64)]
    newcomer = newcomer_of(requests, 12)
    assert newcomer.prompt_token_ids == (1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2)
    assert newcomer.max_tokens == NEWCOMER_TOKENS
    assert newcomer_of(requests, 2).prompt_token_ids == (1, 2)


async def test_the_newcomer_comes_once_every_session_has_emitted_a_quarter() -> None:
    sessions = [a_request((index + 1,), max_tokens=20, gamma=0) for index in range(3)]
    run = await stream_beside(FakeStart(), sessions, a_request((9,) * 50, max_tokens=2, gamma=0), Ticks())
    assert [one.num_tokens for one in run.sessions] == [20, 20, 20]
    assert run.newcomer is not None
    assert run.newcomer.num_tokens == 2
    quarters = [one.arrivals[4].at_s for one in run.sessions]
    assert run.watched_from_s == max(quarters)
    assert run.newcomer.due_s > run.watched_from_s
    assert run.num_still_streaming == 3


async def test_without_a_newcomer_the_watch_is_the_same() -> None:
    sessions = [a_request((index + 1,), max_tokens=20, gamma=0) for index in range(2)]
    run = await stream_beside(FakeStart(), sessions, None, Ticks())
    assert run.newcomer is None
    assert run.watched_from_s == max(one.arrivals[4].at_s for one in run.sessions)
    assert run.longest_gap_s > 0


async def test_a_row_a_mode() -> None:
    sessions = [a_request((index + 1,), max_tokens=20) for index in range(2)]
    ticks: list[None] = []
    rows = await measure_neighbours(FakeStart(), sessions, newcomer_of(sessions, 30), 2, lambda: ticks.append(None))
    assert [row.mode for row in rows] == [Speculation.OFF, Speculation.ON]
    assert len(ticks) == 8
    for row in rows:
        assert (row.num_sessions, row.prompt_tokens, row.num_survived) == (2, 30, 0)
        assert 0 < row.quiet_s <= row.quiet_worst_s
        assert 0 < row.beside_s <= row.beside_worst_s
    assert set(rows[0].to_object()) == {
        *("speculation", "sessions", "prompt_tokens", "long_prompt_ttft_ms", "still_streaming", "failures_survived"),
        *("longest_gap_without_ms", "longest_gap_without_worst_ms"),
        *("longest_gap_with_ms", "longest_gap_with_worst_ms"),
    }


async def test_a_session_that_breaks_off_is_an_error_and_nobody_waits_for_it() -> None:
    start = FakeStart(verifiers=(FakeVerifier, TooManySessions("all are in use")))
    with pytest.raises(TooManySessions):
        await stream_beside(start, [a_request(), a_request()], a_request())
