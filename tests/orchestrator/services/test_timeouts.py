"""Waiting times: longer where a text takes long to read."""

import pytest

from orchestrator.services.timeouts import TIMES_READ, TIMES_READ_AGAIN, Timeouts
from specgate.types import ForwardCost


def test_a_long_text_is_waited_for_as_long_as_it_takes_to_read() -> None:
    base, target, draft = Timeouts(), (ForwardCost(1, 50), ForwardCost(10, 1000, 200)), (ForwardCost(10, 100),)
    found = base.of_text(10_240, target, draft)
    # Half-way through it ten rows take 1,000 us and five times 200 us more.
    assert found.first_verdict_s == pytest.approx(base.first_verdict_s + TIMES_READ * 2.048)
    assert found.verdict_floor_s == pytest.approx(base.verdict_floor_s + TIMES_READ_AGAIN * 2.048)
    assert found.first_draft_s == pytest.approx(base.first_draft_s + TIMES_READ * 0.1024)
    assert found.draft_floor_s == pytest.approx(base.draft_floor_s + TIMES_READ_AGAIN * 0.1024)
    assert base.of_text(10_240, (), ()) == base
