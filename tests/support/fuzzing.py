"""What all fuzz tests share: a budget of seconds, cases that are counted, and what was found, as plain files."""

import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

from specgate_lab.soak.processes import rss_mb

T = TypeVar("T")


def own_mb() -> float:
    """Return the memory of this process, in MB."""
    return rss_mb(os.getpid())


CASES_A_BATCH = 100
CORPUS = Path(__file__).parents[1] / "chaos" / "corpus"
SETTINGS = settings(
    max_examples=CASES_A_BATCH,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


@dataclass(slots=True)
class FuzzCounts:
    """What came of one surface's cases. ``done`` were done as asked; what follows it must be 0.

    ``grown_mb`` is the memory since the first batch: of the server where it has a process of its own, else with all
    that Hypothesis and the client keep. ``worst_cpu_ms`` and ``worst_wait_ms`` are of such a server's event loop: its
    longest stretch of CPU time, and for how long any other client waited at worst.
    """

    cases: int = 0
    done: int = 0
    http_5xx: int = 0
    internal: int = 0
    hangs: int = 0
    crashes: int = 0
    grown_mb: float | None = None
    worst_cpu_ms: float | None = None
    worst_wait_ms: float | None = None

    def stopped(self, cpu_ms: float, wait_ms: float) -> None:
        """Note what an event loop did."""
        self.worst_cpu_ms = max(self.worst_cpu_ms or 0.0, cpu_ms)
        self.worst_wait_ms = max(self.worst_wait_ms or 0.0, wait_ms)


class Server(Protocol):
    """A server in a process of its own."""

    def memory_mb(self) -> float:
        """Return what it holds, in MB."""
        ...

    def worst_ms(self) -> tuple[float, float]:
        """Return its loop's longest stretch of CPU time, and its longest wait, since this was last asked."""
        ...


@dataclass(slots=True)
class Budget:
    """Seconds for each fuzz test. Runs of one ``first_seed`` try the same cases in the same order."""

    seconds: float
    first_seed: int
    counts: dict[str, FuzzCounts] = field(default_factory=dict)

    def of(self, surface: str) -> FuzzCounts:
        return self.counts.setdefault(surface, FuzzCounts())

    def batches(self) -> Iterator[int]:
        """Yield a seed for each batch, until the time is up; one batch at the least."""
        end_s = time.monotonic() + self.seconds
        for number in count(self.first_seed):
            yield number
            if time.monotonic() > end_s:
                return

    def fuzz(
        self,
        surface: str,
        cases: SearchStrategy[T],
        check: Callable[[T], None],
        server: Server | None = None,
    ) -> None:
        """Check cases until the time is up. ``check`` raises for one that breaks a promise; it is told the smallest.

        Args:
            server: what is fuzzed, where that is not this process.
        """
        counts, end_s = self.of(surface), time.monotonic() + self.seconds
        if server is not None:
            # What came before is none of its cases' doing.
            server.worst_ms()
        failed = False

        def counted(case: T) -> None:
            nonlocal failed
            # One case at the least; and what failed once is made smaller, however long that takes.
            if failed or not counts.cases or time.monotonic() < end_s:
                counts.cases += 1
                try:
                    check(case)
                except BaseException:
                    failed = True
                    raise

        before_mb: float | None = None
        for number in self.batches():
            seed(number)(SETTINGS(given(cases)(counted)))()
            if server is not None:
                counts.stopped(*server.worst_ms())
            now_mb = own_mb() if server is None else server.memory_mb()
            before_mb = now_mb if before_mb is None else before_mb
            counts.grown_mb = now_mb - before_mb

    def rows(self) -> list[dict[str, Any]]:
        """Return the counts, a row a surface."""
        return [{"name": surface, **asdict(counts)} for surface, counts in self.counts.items()]


def corpus(kind: str) -> list[Any]:
    """Return the cases of ``kind`` that once broke something, each with what it broke."""
    return [one for file in sorted(CORPUS.glob("*.json")) for one in json.loads(file.read_text()) if kind in one]


def raw(text: str) -> bytes:
    """Return the bytes that a corpus file holds."""
    return base64.b64decode(text)
