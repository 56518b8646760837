"""What is measured: a level of load, with speculation off and on, in an order that favours neither."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate

REQUESTS_A_CLIENT = 3
MIN_CLOSED_REQUESTS = 8
OPEN_S = 10.0
MIN_OPEN_REQUESTS = 32


class Speculation(StrEnum):
    """Whether the draft is asked."""

    OFF = "off"
    ON = "on"

    def of(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request as this mode sends it."""
        return request if self is Speculation.ON else replace(request, gamma=0, gate=Gate.NONE, gate_threshold=None)


class Sweep(StrEnum):
    """What a level counts: clients of a closed loop, or requests a second of an open one."""

    CONCURRENCY = "concurrency"
    RATE = "rate"


class Level(NamedTuple):
    """One level of load."""

    sweep: Sweep
    value: float

    @property
    def num_requests(self) -> int:
        """How many make one measurement where nobody says: three a client, or ten seconds' worth."""
        if self.sweep is Sweep.CONCURRENCY:
            return max(MIN_CLOSED_REQUESTS, REQUESTS_A_CLIENT * int(self.value))
        return max(MIN_OPEN_REQUESTS, math.ceil(OPEN_S * self.value))


class LoadTurn(NamedTuple):
    """One measurement that is to be made."""

    repeat: int
    level: Level
    mode: Speculation


def turns(levels: Sequence[Level], repeats: int) -> Iterator[LoadTurn]:
    """Yield every level in both modes ``repeats`` times. Off and on of one level are neighbours; who is first changes.

    So that a machine that grows slower, or a neighbour that wakes up, hits both alike.
    """
    for repeat in range(repeats):
        for index, level in enumerate(levels):
            modes = (
                (Speculation.OFF, Speculation.ON) if (repeat + index) % 2 == 0 else (Speculation.ON, Speculation.OFF)
            )
            for mode in modes:
                yield LoadTurn(repeat, level, mode)
