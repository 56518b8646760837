"""A longer way to the services: the flags of ``bench`` that measure what it costs."""

from dataclasses import dataclass
from typing import Annotated

import typer

from specgate_lab.load.options import listed

MAX_DELAY_MS = 500.0
"""A draft may take a second at the least before it is given up."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Round-trip delays that are added between the orchestrator and both services.

    Raises:
        InvalidArgument: a value is outside its range; the message names the flag.
    """

    added_delay_ms: Annotated[
        str | None,
        typer.Option(
            metavar="MS,MS,...",
            help="Measure the network: added round-trip time between the orchestrator and both services, "
            "such as 0,1,5,20.",
            rich_help_panel="Network",
        ),
    ] = None

    def __post_init__(self) -> None:
        _ = self.delays_ms

    @property
    def is_wanted(self) -> bool:
        return self.added_delay_ms is not None

    @property
    def delays_ms(self) -> tuple[float, ...]:
        """All delays, as they were given."""
        return listed("added_delay_ms", self.added_delay_ms, float, 0.0, MAX_DELAY_MS)
