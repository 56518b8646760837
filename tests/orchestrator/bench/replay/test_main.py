"""The table of gates on traces, as a command."""

from pathlib import Path

import pytest

from orchestrator.bench.replay.__main__ import main
from orchestrator.bench.replay.synthetic import KINDS, machine, trace
from orchestrator.bench.replay.trace import write_trace


def test_what_cannot_be_replayed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "few.jsonl"
    write_trace(file, trace(KINDS["warm, good draft"], machine(0.09), 2, 16))
    monkeypatch.setattr("sys.argv", ["replay_gates", str(file)])
    main()
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3
    assert shown.err == "few.jsonl: 2 texts are too few for 8 sessions\n"
    monkeypatch.setattr("sys.argv", ["replay_gates", str(tmp_path / "none.jsonl")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "none.jsonl cannot be read" in capsys.readouterr().err


def test_a_row_a_trace_and_concurrency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.jsonl"
    write_trace(file, trace(KINDS["warm, good draft"], machine(0.09), 6, 48))
    monkeypatch.setattr("sys.argv", ["replay_gates", str(file), "--concurrency", "1", "2"])
    main()
    _, _, one, two = capsys.readouterr().out.splitlines()
    assert one.startswith("| one.jsonl | 1 |")
    assert two.startswith("| one.jsonl | 2 |")
    assert all(float(row.split("|")[-2]) > 0.5 for row in (one, two))
