"""The table of gates on traces, as a command."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specgate_lab.replay.__main__ import main
from specgate_lab.replay.synthetic import KINDS, machine, trace
from specgate_lab.replay.trace import write_trace

Replay = Callable[..., tuple[list[str], str]]


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Replay:
    """Run the command; return the lines that it prints, and what it tells beside them."""

    def run(*arguments: str | Path) -> tuple[list[str], str]:
        monkeypatch.setattr("sys.argv", ["replay_gates", *map(str, arguments)])
        main()
        shown = capsys.readouterr()
        return shown.out.splitlines(), shown.err

    return run


def test_a_row_a_trace_and_concurrency(replay: Replay, tmp_path: Path) -> None:
    write_trace(tmp_path / "one.jsonl", trace(KINDS["warm, good draft"], machine(0.09), 6, 48))
    (_, _, one, two), _ = replay(tmp_path / "one.jsonl", "--concurrency", "1", "2")
    assert one.startswith("| one.jsonl | 1 |")
    assert two.startswith("| one.jsonl | 2 |")
    assert all(float(row.split("|")[-2]) > 0.5 for row in (one, two))


def test_the_rows_of_a_folder_are_kept_as_json(replay: Replay, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    write_trace(traces / "one.jsonl", trace(KINDS["warm, good draft"], machine(0.09), 2, 16))
    (_, _, shown), _ = replay(traces, "--concurrency", "2", "--json", tmp_path / "rows.json")
    kept = json.loads((tmp_path / "rows.json").read_text("utf-8"))
    (row,) = kept["rows"]
    assert (row["trace"], row["sessions"]) == ("one.jsonl", 2)
    assert f"| {row['best_tokens_per_s']:.0f} | {row['best']} | {row['auto_tokens_per_s']:.0f} |" in shown
    assert kept["provenance"]["command"].startswith("replay_gates ")


def test_what_cannot_be_replayed_is_told(replay: Replay, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(tmp_path / "few.jsonl", trace(KINDS["warm, good draft"], machine(0.09), 2, 16))
    lines, told = replay(tmp_path / "few.jsonl")
    assert len(lines) == 3
    assert told == "few.jsonl: 2 texts are too few for 8 sessions\n"
    with pytest.raises(SystemExit, match="1"):
        replay(tmp_path / "none.jsonl")
    assert "none.jsonl cannot be read" in capsys.readouterr().err
