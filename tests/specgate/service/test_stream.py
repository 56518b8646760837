"""The first steps of a session's stream."""

from types import SimpleNamespace

import pytest

from specgate.service import stream


def test_time_is_counted_from_arrival_and_then_from_answer_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 10.75, 20.0, 20.25])
    monkeypatch.setattr(stream, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    stopwatch = stream.Stopwatch()
    stopwatch.start()
    assert [stopwatch.lap_us(), stopwatch.lap_us()] == [500_000, 250_000]
    stopwatch.start()
    assert stopwatch.lap_us() == 250_000
