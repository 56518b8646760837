"""The rows of the network table. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specgate_lab.throughput.rows import Row, rows_of
from specgate_lab.throughput.samples import Samples


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """A row of the benchmark with ``added_ms`` of round trip; ``row.ratio_to_target`` is to the target as delayed.

    ``ratio_to_nearest`` is to the same row at the least delay.
    """

    added_ms: float
    row: Row
    ratio_to_nearest: float

    def to_object(self) -> dict[str, Any]:
        """Return the row as ``--json`` writes it."""
        return {"added_delay_ms": self.added_ms, "ratio_to_nearest": self.ratio_to_nearest, **self.row.to_object()}


def network_rows(samples: Mapping[float, Samples]) -> list[NetworkRow]:
    """Return the rows of every delay, in milliseconds, from the least to the largest."""
    rows = {added_ms: rows_of(samples[added_ms]) for added_ms in sorted(samples)}
    nearest = {row.name: row.rate.median for row in rows[min(rows)]}
    return [
        NetworkRow(added_ms, row, row.rate.median / (nearest[row.name] or float("inf")))
        for added_ms, own in rows.items()
        for row in own
    ]
