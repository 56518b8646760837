"""A long prompt among streaming sessions: who is watched, and from when."""

import pytest

from specgate.errors import TooManySessions
from specgate_lab.bench.load.levels import Speculation
from specgate_lab.bench.load.neighbour import NEWCOMER_TOKENS, Beside, measure_neighbours, newcomer_of, stream_beside
from tests.specgate_lab.support import FakeStart, Ticks, a_request, a_timeline
from tests.support.fakes import FakeVerifier


def test_only_gaps_that_end_after_all_were_under_way_count() -> None:
    early = a_timeline(0.0, (1.0, 1), (9.0, 1), (10.0, 1), (12.0, 1))
    other = a_timeline(0.0, (9.5, 1), (10.5, 1))
    assert Beside((early, other), watched_from_s=9.5).longest_gap_s == 2.0
    assert Beside((early, other), watched_from_s=0.5).longest_gap_s == 8.0
    assert Beside((a_timeline(0.0, (1.0, 4)),), watched_from_s=1.0).longest_gap_s == 0.0


def test_how_many_sessions_outlive_the_wait_for_the_newcomers_first_token() -> None:
    sessions = (a_timeline(0.0, (1.0, 1), (5.0, 1)), a_timeline(0.0, (1.0, 1), (9.0, 1)))
    assert Beside(sessions, 1.0, a_timeline(2.0, (6.0, 1))).num_still_streaming == 1
    assert Beside(sessions, 1.0, a_timeline(2.0, (10.0, 1))).num_still_streaming == 0
    assert Beside(sessions, 1.0).num_still_streaming == 0


@pytest.mark.parametrize("with_newcomer", [False, True])
async def test_the_watch_begins_and_the_newcomer_comes_once_every_session_has_emitted_a_quarter(
    with_newcomer: bool,
) -> None:
    sessions = [a_request((index + 1,), max_tokens=20, gamma=0) for index in range(3)]
    newcomer = a_request((9,) * 50, max_tokens=2, gamma=0) if with_newcomer else None
    run = await stream_beside(FakeStart(), sessions, newcomer, Ticks())
    assert [one.num_tokens for one in run.sessions] == [20, 20, 20]
    assert run.watched_from_s == max(one.arrivals[4].at_s for one in run.sessions)
    assert run.longest_gap_s > 0
    assert (run.newcomer is not None) == with_newcomer
    if run.newcomer:
        assert run.newcomer.num_tokens == 2
        assert run.newcomer.due_s > run.watched_from_s
        assert run.num_still_streaming == 3


async def test_a_row_a_mode_with_a_newcomer_of_the_length_asked_for() -> None:
    sessions = [a_request((1, 2, 3), max_tokens=20), a_request((4, 5), max_tokens=20)]
    newcomer = newcomer_of(sessions, 12)
    assert newcomer.prompt_token_ids == (1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2)
    assert newcomer.max_tokens == NEWCOMER_TOKENS
    rows = await measure_neighbours(FakeStart(), sessions, newcomer, 2)
    assert [row.speculation for row in rows] == [Speculation.OFF, Speculation.ON]
    for row in rows:
        assert (row.sessions, row.prompt_tokens, row.failures_survived) == (2, 12, 0)
        assert 0 < row.longest_gap_without_ms <= row.longest_gap_without_worst_ms
        assert 0 < row.longest_gap_with_ms <= row.longest_gap_with_worst_ms


async def test_a_session_that_breaks_off_is_an_error_and_nobody_waits_for_it() -> None:
    start = FakeStart(verifiers=(FakeVerifier, TooManySessions("all are in use")))
    with pytest.raises(TooManySessions):
        await stream_beside(start, [a_request(), a_request()], a_request())
