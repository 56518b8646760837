"""What a served system holds, looked at every few seconds."""

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from specgate_lab.soak.clients import Tally
from specgate_lab.soak.processes import num_descriptors, rss_mb
from specgate_lab.soak.replicas import ROLES, Held, held_by, replicas_under

SAMPLE_EVERY_S = 5.0
KILL_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Process:
    """One replica at one moment."""

    pid: int
    role: str
    rss_mb: float
    descriptors: int


@dataclass(frozen=True, slots=True)
class Sample:
    """All replicas at one moment, seconds from the start, and how much was answered until then."""

    at_s: float
    processes: tuple[Process, ...]
    held: Held
    whole: int
    tokens: int


@dataclass(slots=True)
class Kill:
    """When a replica was killed, seconds from the start."""

    at_s: float
    role: str


@dataclass(slots=True)
class Log:
    """All samples and kills of one soak."""

    start_s: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.start_s

    async def look(self, pid: int, tally: Tally) -> Held:
        """Take one sample of the system that ``pid`` serves; return what is held."""
        replicas = await asyncio.to_thread(replicas_under, pid)
        processes = tuple(Process(one.pid, one.role, rss_mb(one.pid), num_descriptors(one.pid)) for one in replicas)
        held = await held_by(replicas)
        self.samples.append(Sample(self.now_s, processes, held, tally.whole, tally.tokens))
        return held

    def to_object(self) -> dict[str, Any]:
        """Return samples and kills as the file holds them."""
        samples = [{**asdict(one), "held": one.held._asdict()} for one in self.samples]
        return {"samples": samples, "kills": [asdict(one) for one in self.kills]}


async def look_on(log: Log, pid: int, tally: Tally, every_s: float) -> None:
    """Sample until cancelled."""
    while True:
        await log.look(pid, tally)
        await asyncio.sleep(every_s)


async def kill_now_and_then(log: Log, pid: int, every_s: float = KILL_EVERY_S) -> None:
    """Kill a drafter or a verifier, in turns, until cancelled."""
    rng, number = random.Random(0), 0
    while True:
        await asyncio.sleep(every_s)
        role = ROLES[number % len(ROLES)]
        number += 1
        found = [one for one in await asyncio.to_thread(replicas_under, pid) if one.role == role]
        if found:
            # It may have died by itself since.
            with suppress(ProcessLookupError):
                os.kill(rng.choice(found).pid, signal.SIGKILL)
            log.kills.append(Kill(log.now_s, role))
