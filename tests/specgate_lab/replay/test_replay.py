"""Replays: right against a sum by hand, equal to themselves, and fair to what they compare."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument
from specgate_lab.gate_choice import AUTO_GATE, TARGET_ALONE, GateChoice
from specgate_lab.replay.__main__ import main
from specgate_lab.replay.compare import THRESHOLDS, choices_of, replay
from specgate_lab.replay.machine import Clock, Device, Forward, SimulatedMachine
from specgate_lab.replay.trace import RoundTrace, TracedText, write_trace
from tests.support.made_up_traces import KINDS, machine, trace

MACHINE = SimulatedMachine(forward_us=1000, session_us=10, row_us=10, draft_us=100, draft_session_us=1, network_us=0)
DRAFTS_2, DRAFTS_4 = GateChoice(Gate.NONE, 2), GateChoice(Gate.NONE, 4)
SURE, AGREED = (0.9,) * 9, (True,) * 9
DRAFT_UNSURE = (0.9, 0.3, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, None)
UNSURE = (0.9, 0.9, 0.1, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9)


@pytest.mark.parametrize(
    ("choice", "agrees", "confidences", "emitted"),
    [
        # Rounds of two draft steps and a forward of three rows.
        (DRAFTS_2, AGREED, SURE, [(1220, 3), (2440, 6), (3660, 9)]),
        (DRAFTS_2, (True, False, *AGREED[2:]), SURE, [(1220, 2), (2440, 5), (3660, 8), (4660, 9)]),
        (TARGET_ALONE, AGREED, SURE, [(1000 * n, n) for n in range(1, 10)]),
        # A round, two solo tokens, a round, the last token.
        (
            GateChoice(Gate.TARGET_CONFIDENCE, 2, 0.5),
            AGREED,
            UNSURE,
            [(1220, 3), (2220, 4), (3220, 5), (4440, 8), (5440, 9)],
        ),
        # The first draft is two tokens long, and costs no more; the others are as long as they may be.
        (GateChoice(Gate.DRAFT_CONFIDENCE, 4, 0.5), AGREED, SURE, [(1220, 3), (2660, 8), (3660, 9)]),
        (GateChoice(Gate.TARGET_CONFIDENCE, 4, 0.5, 0.5), AGREED, UNSURE, [(1220, 3), (2220, 4), (3220, 5), (4550, 9)]),
    ],
    ids=["accepted", "a rejection", "target alone", "solo run", "unsure draft", "both"],
)
def test_a_text_by_hand(
    choice: GateChoice, agrees: tuple[bool, ...], confidences: tuple[float, ...], emitted: list[tuple[float, int]]
) -> None:
    result = replay(RoundTrace(MACHINE, (TracedText(confidences, agrees, DRAFT_UNSURE),)), 1, choice)
    assert result.emitted == emitted
    assert result.tokens_per_s() == pytest.approx(9 / emitted[-1][0] * 1e6)


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
    first, second = (replay(one, sessions, AUTO_GATE) for _ in range(2))
    assert first == second
    assert first.num_tokens == 640


def test_sessions_share_a_verifier_and_rates_are_taken_while_all_of_them_work() -> None:
    one = trace(KINDS["warm, good draft"], machine(0.09), 16, 64)
    alone, crowd = (replay(one, sessions, DRAFTS_4) for sessions in (1, 8))
    assert 2 * alone.tokens_per_s() < crowd.tokens_per_s() < 8 * alone.tokens_per_s()
    assert 0 < crowd.num_full < len(crowd.emitted)
    with pytest.raises(InvalidArgument, match="all sessions were at work"):
        crowd.tokens_per_s(after_tokens=16 * 64)


def test_choices_that_need_the_drafts_probabilities_are_left_out_where_they_are_unknown() -> None:
    one = RoundTrace(MACHINE, (TracedText(SURE, AGREED, DRAFT_UNSURE),))
    kinds = {(choice.gate, choice.draft_threshold) for choice in choices_of(one)}
    assert {gate for gate, draft_threshold in kinds if not draft_threshold} == set(Gate) - {Gate.AUTO}
    assert {draft_threshold for _, draft_threshold in kinds} == {None, *THRESHOLDS}
    old = RoundTrace(MACHINE, (TracedText(SURE, AGREED),))
    assert {choice.stops_drafts for choice in choices_of(old)} == {False}


@pytest.mark.parametrize("sessions", [0, 5])
def test_there_must_be_a_text_for_every_session(sessions: int) -> None:
    one = trace(KINDS["warm, good draft"], machine(0.09), 4, 8)
    with pytest.raises(InvalidArgument, match="concurrency"):
        replay(one, sessions, DRAFTS_4)


Command = Callable[..., tuple[list[str], str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command; return the lines that it prints, and what it prints on standard error."""

    def run(*arguments: str | Path) -> tuple[list[str], str]:
        monkeypatch.setattr("sys.argv", ["replay_gates", *map(str, arguments)])
        main()
        shown = capsys.readouterr()
        return shown.out.splitlines(), shown.err

    return run


def test_the_command_prints_and_keeps_a_row_for_each_trace_and_concurrency(command: Command, tmp_path: Path) -> None:
    for name, num_texts in (("few", 2), ("many", 3)):
        write_trace(tmp_path / f"{name}.jsonl", trace(KINDS["warm, good draft"], machine(0.09), num_texts, 48))
    (_, _, *shown), refused = command(tmp_path, "--concurrency", "1", "3", "--json", tmp_path / "rows.json")
    kept = json.loads((tmp_path / "rows.json").read_text("utf-8"))
    assert refused == "few.jsonl: concurrency: 3 is outside [1, 2 texts]\n"
    assert kept["provenance"]["command"].startswith("replay_gates ")
    assert [(row["trace"], row["sessions"]) for row in kept["rows"]] == [
        ("few.jsonl", 1), ("many.jsonl", 1), ("many.jsonl", 3),
    ]  # fmt: skip
    for row, line in zip(kept["rows"], shown, strict=True):
        assert f"| {row['auto']:.2f} | {row['best']} | {row['auto_to_best']:.3f} |" in line
        assert row["auto"] / max(row["none"], row["target_confidence"], 1) == pytest.approx(row["auto_to_best"])
        assert row["auto_to_best"] > 0.5


def test_a_trace_that_cannot_be_read_is_named(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        command(tmp_path / "none.jsonl")
    assert "none.jsonl cannot be read" in capsys.readouterr().err
