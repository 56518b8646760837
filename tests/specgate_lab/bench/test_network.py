"""The network table: rows by delay."""

from specgate_lab.bench.network import network_rows
from specgate_lab.experiment import Sample


def test_rows_are_compared_with_the_target_as_delayed_and_with_themselves_near_by() -> None:
    rates = {20.0: {"target": 90, "spec": 45}, 0.0: {"target": 100, "spec": 180}}
    samples = {
        delay_ms: {name: [Sample(rate, 1.0)] for name, rate in by_name.items()} for delay_ms, by_name in rates.items()
    }
    rows = network_rows(samples)
    told = [(one.added_ms, one.row.name, one.row.ratio_to_target, one.ratio_to_nearest) for one in rows]
    assert told == [(0, "target", 1, 1), (0, "spec", 1.8, 1), (20, "target", 1, 0.9), (20, "spec", 0.5, 0.25)]
    last = rows[-1].to_object()
    assert (last["added_delay_ms"], last["name"], last["tokens_per_s"]) == (20, "spec", 45)
