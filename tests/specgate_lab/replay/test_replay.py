"""Replays: right against a sum by hand, equal to themselves, and fair to what they compare."""

from functools import partial

import pytest

from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.gates import AlwaysDraft, TargetAlone, TargetConfidence
from specgate.errors import InvalidArgument
from specgate_lab.replay.compare import auto_gate, replay_fixed
from specgate_lab.replay.machine import Clock, Device, Forward, SimulatedMachine
from specgate_lab.replay.replay import Replay, ReplayResult
from specgate_lab.replay.synthetic import KINDS, machine, trace
from specgate_lab.replay.trace import RoundTrace, TracedText

MACHINE = SimulatedMachine(forward_us=1000, session_us=10, row_us=10, draft_us=100, draft_session_us=1, network_us=0)
SURE = (0.9,) * 9


def replayed(policy, agrees: tuple[bool, ...], confidences: tuple[float, ...] = SURE) -> ReplayResult:
    return replay_fixed(RoundTrace(MACHINE, (TracedText(confidences, agrees),)), 1, policy)


def test_a_fully_accepted_text() -> None:
    result = replayed(AlwaysDraft(2), (True,) * 9)
    # Three rounds of two draft steps and a forward of three rows.
    assert result.emitted == [(1220.0, 3), (2440.0, 6), (3660.0, 9)]
    assert result.tokens_per_s() == pytest.approx(9 / 3660e-6)


def test_a_rejection_ends_a_round() -> None:
    result = replayed(AlwaysDraft(2), (True, False, True, True, True, True, True, True, True))
    assert [num for _, num in result.emitted] == [2, 5, 8, 9]
    assert (result.num_rounds, result.num_drafted) == (3, 6)


def test_the_target_alone_streams() -> None:
    assert replayed(TargetAlone(), (True,) * 9).emitted == [(1000.0 * n, n) for n in range(1, 10)]


def test_an_unsure_target_goes_on_alone() -> None:
    confidences = (0.9, 0.9, 0.1, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9)
    result = replayed(TargetConfidence(2, 0.5), (True,) * 9, confidences)
    # A round, two solo tokens, a round, the last token.
    assert [num for _, num in result.emitted] == [3, 4, 5, 8, 9]
    assert [at for at, _ in result.emitted] == [1220.0, 2220.0, 3220.0, 4440.0, 5440.0]


def test_what_is_ready_shares_a_forward_and_the_rest_waits() -> None:
    clock, forwards = Clock(), list[tuple[float, Forward]]()
    device = Device(clock, 1000, 100, 10)

    def note(done: Forward) -> None:
        forwards.append((clock.now_us, done))

    for at_us, rows in ((0, 3), (0, 2), (500, 1)):
        clock.after(at_us, partial(device.submit, rows, note))
    clock.run()
    both, last = Forward(2, 5, 1130.0), Forward(1, 1, 1000.0)
    assert forwards == [(1130.0, both), (1130.0, both), (2130.0, last)]


@pytest.mark.parametrize("sessions", [1, 8])
def test_a_replay_repeats_itself(sessions: int) -> None:
    one = trace(KINDS["warm, good draft"], machine(0.33), 10, 64)
    first, second = (Replay(one, sessions, auto_gate(Learner())).run() for _ in range(2))
    assert first == second
    assert first.num_tokens == 640


def test_sessions_that_share_a_verifier_are_faster_together() -> None:
    one = trace(KINDS["warm, good draft"], machine(0.09), 16, 64)
    alone, crowd = (replay_fixed(one, sessions, AlwaysDraft(4)).tokens_per_s() for sessions in (1, 8))
    assert 2 * alone < crowd < 8 * alone


def test_rates_are_taken_while_all_sessions_work() -> None:
    one = trace(KINDS["warm, good draft"], machine(0.09), 16, 64)
    result = replay_fixed(one, 8, AlwaysDraft(4))
    assert 0 < result.num_full < len(result.emitted)
    with pytest.raises(InvalidArgument, match="all sessions were at work"):
        result.tokens_per_s(after_tokens=16 * 64)


@pytest.mark.parametrize("sessions", [0, 5])
def test_there_must_be_a_text_for_every_session(sessions: int) -> None:
    one = trace(KINDS["warm, good draft"], machine(0.09), 4, 8)
    with pytest.raises(InvalidArgument, match="concurrency"):
        replay_fixed(one, sessions, AlwaysDraft(4))
