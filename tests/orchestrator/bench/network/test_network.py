"""The network table: rows by delay, the table, the pictures, and the flags."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.bench.network.options import NetworkOptions
from orchestrator.bench.network.rows import NetworkRow, network_rows
from orchestrator.bench.network.table import draw_network, print_network
from orchestrator.bench.throughput.agreement import TextAgreement
from orchestrator.bench.throughput.samples import Sample
from orchestrator.decode.request import GenerationStats
from specgate.errors import InvalidArgument

RATES = {0.0: {"target": 100, "spec": 180}, 20.0: {"target": 90, "spec": 45}}


def rows() -> list[NetworkRow]:
    samples = {
        delay_ms: {
            name: [Sample(prompt, 0, (1,), rate, 1.0, GenerationStats()) for prompt in range(2)]
            for name, rate in rates.items()
        }
        for delay_ms, rates in reversed(RATES.items())
    }
    return network_rows(samples)


def test_rows_are_compared_with_the_target_as_delayed_and_with_themselves_near_by() -> None:
    told = [(one.added_ms, one.row.name, one.row.ratio_to_target, one.ratio_to_nearest) for one in rows()]
    assert told == [(0, "target", 1, 1), (0, "spec", 1.8, 1), (20, "target", 1, 0.9), (20, "spec", 0.5, 0.25)]
    last = rows()[-1].to_object()
    assert (last["added_delay_ms"], last["name"], last["tokens_per_s"]) == (20, "spec", 45)


@pytest.mark.parametrize("width", [90, 120])
def test_the_table_shows_every_number(width: int) -> None:
    stream = io.StringIO()
    print_network(Console(file=stream, width=width), rows(), TextAgreement(("target", "spec"), 2, 2))
    shown = stream.getvalue()
    assert all(words in shown for words in ("added ms", "20", "45.0", "0.50", "0.25", "2 of 2 prompts"))
    assert "…" not in shown


def test_the_pictures(tmp_path: Path) -> None:
    paths = draw_network(tmp_path, rows())
    assert [path.name for path in paths] == ["network_throughput.png", "network_speedup.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for path in paths)


def test_delays_are_numbers_of_milliseconds() -> None:
    assert NetworkOptions("0,0.5,20").delays_ms == (0, 0.5, 20)
    assert NetworkOptions("0").is_wanted
    assert not NetworkOptions().is_wanted
    for given, problem in (("1,x", "is no list"), ("-1", "is outside"), ("1,1", "twice"), ("nan", "is outside")):
        with pytest.raises(InvalidArgument, match=f"added_delay_ms: .*{problem}"):
            NetworkOptions(given)
