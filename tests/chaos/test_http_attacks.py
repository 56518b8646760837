"""Clients that speak HTTP badly: honest ones beside them are served, and each of them is sent away in the end."""

import time
from dataclasses import dataclass

import pytest

pytest.importorskip("ray")

from tests.support.chaos_http import HEAD, closed_within, many
from tests.support.chaos_system import System
from tests.support.chaos_table import ChaosRow, ChaosTable

pytestmark = pytest.mark.chaos

CLOSED_WITHIN_S = 60.0
HONEST_WITHIN_S = 5.0
BODY = HEAD + b"Content-Length: 100\r\n\r\n{"


@dataclass
class Honest:
    """What clients that behave got beside an attack."""

    worst_s: float = 0.0
    num_failed: int = 0

    def ask(self, system: System, times: int = 3) -> None:
        for _ in range(times):
            for method, path in (("GET", "/healthz"), ("GET", "/readyz"), ("POST", "/v1/completions")):
                start_s = time.monotonic()
                status = system.completes(10.0) if method == "POST" else system.asks(method, path, 10.0)
                self.worst_s = max(self.worst_s, time.monotonic() - start_s)
                self.num_failed += status != 200

    def check(self, row: ChaosRow) -> None:
        row.gap_s = self.worst_s
        row.seen += f"; honest clients: {self.num_failed} failed"
        assert self.num_failed == 0
        assert self.worst_s < HONEST_WITHIN_S


def attack(system: System, row: ChaosRow, number: int, sent: bytes) -> None:
    """Hold so many bad connections; honest clients are served meanwhile, and each bad one is closed in the end."""
    before, honest = system.memory_mb(), Honest()
    with many(system.http, number, sent) as opened:
        honest.ask(system)
        closed, took_s = closed_within(opened, CLOSED_WITHIN_S)
        row.seen = f"{closed} of {len(opened)} closed after {took_s:.0f} s"
        num_open = len(opened) - closed
        assert len(opened) == number
    honest.check(row)
    system.check_left(row, before)
    assert num_open == 0


def test_half_sent_heads(system: System, chaos: ChaosTable) -> None:
    with chaos.row("HTTP: 500 half-sent heads") as row:
        attack(system, row, 500, HEAD)


def test_unfinished_bodies(system: System, chaos: ChaosTable) -> None:
    with chaos.row("HTTP: 340 unfinished bodies") as row:
        attack(system, row, 340, BODY)


OK = b"HTTP/1.1 200"


def test_a_reader_of_a_byte_a_second(system: System, chaos: ChaosTable) -> None:
    with chaos.row("HTTP: 3 readers of a byte a second") as row:
        before, honest = system.memory_mb(), Honest()
        body = b'{"model":"chaos","prompt":"x","max_tokens":400,"stream":true,"ignore_eos":true,"logprobs":5}'
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        with many(system.http, 3, request) as readers:
            begun = [b""] * len(readers)
            for _ in range(len(OK)):
                for index, one in enumerate(readers):
                    one.settimeout(60.0)
                    begun[index] += one.recv(1)
                time.sleep(1.0)
            honest.ask(system, 1)
        row.seen = "others are served"
        honest.check(row)
        system.check_left(row, before)
        assert begun == [OK] * 3
