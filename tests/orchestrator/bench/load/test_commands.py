"""The flags, tables and plots of ``bench`` under load."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.bench.load.levels import Level, Speculation, Sweep
from orchestrator.bench.load.neighbour import NeighbourRow
from orchestrator.bench.load.options import OPEN_LOOP_SESSIONS, LoadOptions
from orchestrator.bench.load.plots import draw
from orchestrator.bench.load.summary import Summary, summaries
from orchestrator.bench.load.table import print_load, print_neighbours
from orchestrator.bench.workload.prompts import BENCH_PROMPTS, mixed_prompts
from orchestrator.decode.request import GenerationStats
from specgate.errors import InvalidArgument
from tests.orchestrator.bench.load.support import a_trace

PNG = b"\x89PNG\r\n\x1a\n"


def load_rows(num_lost: int = 0) -> list[Summary]:
    levels = (Level(Sweep.CONCURRENCY, 1), Level(Sweep.CONCURRENCY, 8), Level(Sweep.RATE, 2.5))
    stats = GenerationStats(completion_tokens=6, target_forwards=3, verifier_failovers=num_lost)
    one = a_trace(0.0, (0.123, 1), (0.2, 5), stats=stats)
    return summaries({(level, mode): [[one]] for level in levels for mode in Speculation})


def neighbour_row(num_still_streaming: int) -> NeighbourRow:
    return NeighbourRow(Speculation.OFF, 8, 1500, 0.02, 0.03, 1.5, 1.75, 1.6, num_still_streaming, 0)


def test_levels_and_what_they_need() -> None:
    load = LoadOptions(concurrency="1,8", rate="0.5", long_prompt=99)
    assert load.is_wanted
    assert load.levels == (Level(Sweep.CONCURRENCY, 1), Level(Sweep.CONCURRENCY, 8), Level(Sweep.RATE, 0.5))
    assert load.num_streams == 8
    assert load.num_sessions == OPEN_LOOP_SESSIONS
    assert LoadOptions(long_prompt=99).num_streams == 8
    assert LoadOptions(concurrency="100", long_prompt=99).num_sessions == 202
    assert not LoadOptions().is_wanted


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"concurrency": "1,x"}, "concurrency: '1,x' is no list of numbers"),
        ({"concurrency": "1.5"}, "concurrency: '1.5' is no list of numbers"),
        ({"concurrency": ""}, "concurrency: '' is no list of numbers"),
        ({"concurrency": "4,0"}, r"concurrency: 0 is outside \[1, 1024\]"),
        ({"concurrency": "4,4"}, "concurrency: 4,4 names a level twice"),
        ({"rate": "nan"}, r"rate: nan is outside"),
        ({"rate": "0"}, r"rate: 0.0 is outside"),
        ({"rate": "1", "requests": 0}, "requests: 0 is outside"),
        ({"long_prompt": 0}, "long_prompt: 0 is outside"),
        ({"requests": 5}, "requests: is for --concurrency and --rate"),
        ({"plots": Path("x"), "long_prompt": 5}, "plots: is for --concurrency and --rate"),
    ],
)
def test_bad_load_is_refused_by_name(values, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        LoadOptions(**values)


def test_plots_without_matplotlib_are_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = LoadOptions(concurrency="1", plots=tmp_path / "plots")
    monkeypatch.setattr("orchestrator.bench.load.options.find_spec", lambda _: None)
    with pytest.raises(InvalidArgument, match=r"plots: needs matplotlib: pip install 'specgate\[bench\]'"):
        load.prepare()
    assert not (tmp_path / "plots").exists()
    LoadOptions(concurrency="1").prepare()


def test_a_folder_for_plots_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.bench.load.options.find_spec", lambda _: sys)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match=r"plots: .* cannot be made"):
        LoadOptions(concurrency="1", plots=tmp_path / "file" / "plots").prepare()
    LoadOptions(concurrency="1", plots=tmp_path / "a" / "b").prepare()
    assert (tmp_path / "a" / "b").is_dir()


def test_prompts_are_of_mixed_lengths_and_go_on_differently() -> None:
    prompts = mixed_prompts()
    assert len({prompt[-20:] for prompt in prompts}) == len(prompts) == len(BENCH_PROMPTS)
    assert {sum(one in prompt for one in BENCH_PROMPTS) for prompt in prompts} == {1, 2, 4, 8}


@pytest.mark.parametrize("width", [120, 300])
def test_the_tables_show_every_number_at_any_width(width: int) -> None:
    stream = io.StringIO()
    print_load(Console(file=stream, width=width), load_rows())
    shown = stream.getvalue()
    for words in ("clients", "requests/s", "2.5", "tokens/s", "× one client", "TTFT p50 / p99 ms", "123 / 123", "30.0"):
        assert words in shown
    assert "…" not in shown
    assert "no rates" not in shown


def test_services_that_were_lost_spoil_the_measurement_and_that_is_told() -> None:
    stream = io.StringIO()
    print_load(Console(file=stream, width=120), load_rows(num_lost=1))
    assert "lost, or too slow to answer, 6 times" in stream.getvalue()


def test_the_table_of_the_long_prompt_says_whether_all_of_it_was_seen() -> None:
    stream = io.StringIO()
    print_neighbours(Console(file=stream, width=120), [neighbour_row(3)])
    print_neighbours(Console(file=stream, width=120), [neighbour_row(0)])
    before, after = stream.getvalue().split("Longest gap")[1:]
    assert all(words in before for words in ("1500 tokens", "20.0", "1500", "1750", "1600"))
    assert "give more --max-tokens" not in before
    assert "give more --max-tokens" in after


def test_plots_are_png_files_of_every_sweep(tmp_path: Path) -> None:
    paths = draw(tmp_path, load_rows())
    assert {path.name for path in paths} == {
        f"{sweep}_{name}.png"
        for sweep in Sweep
        for name in ("throughput", "per_request", "ttft", "tpot", "itl", "e2e", "batch_width")
    }
    assert all(path.read_bytes().startswith(PNG) for path in paths)


def test_a_plot_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"plots: .* cannot be written"):
        draw(tmp_path / "missing", load_rows())
