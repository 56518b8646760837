"""The first steps of a session's stream."""

import time

from specgate.service.stream import Stopwatch


def test_time_is_counted_from_arrival_and_then_from_answer_to_answer() -> None:
    stopwatch = Stopwatch()
    stopwatch.start()
    time.sleep(0.2)
    assert 200_000 <= stopwatch.lap_us() < 10_000_000
    assert stopwatch.lap_us() < 200_000
    time.sleep(0.2)
    stopwatch.start()
    assert stopwatch.lap_us() < 200_000
