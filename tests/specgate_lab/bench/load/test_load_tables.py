"""The flags, tables and plots of ``bench`` under load."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from specgate.errors import InvalidArgument
from specgate_lab.bench.load.levels import Level, Speculation, Sweep
from specgate_lab.bench.load.neighbour import NeighbourRow
from specgate_lab.bench.load.options import OPEN_LOOP_SESSIONS, LoadOptions
from specgate_lab.bench.load.rows import LoadRow, load_rows
from specgate_lab.bench.load.table import draw, print_load, print_neighbours
from specgate_lab.experiment import Sample
from specgate_lab.measured_stats import MeasuredStats
from tests.specgate_lab.support import a_timeline


@pytest.fixture
def rows() -> list[LoadRow]:
    levels = (Level(Sweep.CONCURRENCY, 1), Level(Sweep.CONCURRENCY, 8), Level(Sweep.RATE, 2.5))
    stats = MeasuredStats(completion_tokens=6, target_forwards=3, verifier_failovers=1)
    one = a_timeline(0.0, (0.123, 1), (0.2, 5), stats=stats)
    samples = [Sample(6, 0.2, requests=(one,), case=case) for case in range(len(levels))]
    return load_rows(levels, {str(mode): samples for mode in Speculation})


def test_levels_and_what_they_need() -> None:
    load = LoadOptions(concurrency="1,8", rate="0.5", long_prompt=99)
    assert load.is_wanted
    assert load.levels == (Level(Sweep.CONCURRENCY, 1), Level(Sweep.CONCURRENCY, 8), Level(Sweep.RATE, 0.5))
    assert load.num_streams == LoadOptions(long_prompt=99).num_streams == 8
    assert load.num_sessions == OPEN_LOOP_SESSIONS
    assert LoadOptions(concurrency="100", long_prompt=99).num_sessions == 202
    assert not LoadOptions().is_wanted


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"rate": "0"}, r"rate: 0.0 is outside"),
        ({"rate": "1", "requests": 0}, "requests: 0 is outside"),
        ({"requests": 5}, "requests: is for --concurrency and --rate"),
        ({"plots": Path("x"), "long_prompt": 5}, "plots: is for --concurrency and --rate"),
    ],
)
def test_bad_load_is_refused_by_name(values, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        LoadOptions(**values)


def test_plots_are_refused_before_anything_is_measured_where_nothing_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specgate_lab.report.find_spec", lambda _: None)
    with pytest.raises(InvalidArgument, match="plots: needs matplotlib"):
        LoadOptions(concurrency="1", plots=tmp_path / "plots").prepare()
    LoadOptions(concurrency="1").prepare()


@pytest.mark.parametrize("width", [120, 300])
def test_the_tables_show_every_number_at_any_width_and_what_spoils_it(width: int, rows: list[LoadRow]) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    print_load(console, rows)
    # No session was still streaming when the long prompt had its first token.
    print_neighbours(console, [NeighbourRow(Speculation.OFF, 8, 1500, 20.0, 30.0, 1500.0, 1750.0, 1600.0, 0, 0)])
    shown = stream.getvalue()
    assert all(number in shown for number in ("2.5", "123 / 123", "30.0", "20.0", "1500", "1750", "1600"))
    assert all(warning in shown for warning in ("lost, or too slow to answer, 6 times", "give more --max-tokens"))
    assert "…" not in shown


def test_every_sweep_is_drawn(tmp_path: Path, rows: list[LoadRow]) -> None:
    paths = draw(tmp_path, rows)
    assert {path.name.split("_")[0] for path in paths} == {str(sweep) for sweep in Sweep}
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for path in paths)
    with pytest.raises(InvalidArgument, match=r"plots: .* cannot be written"):
        draw(tmp_path / "missing", rows)
