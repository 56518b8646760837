"""Clients that speak HTTP badly: honest ones beside them are served, and each of them is sent away in the end."""

import http.client
import time
from dataclasses import dataclass

import pytest

pytest.importorskip("ray")

from tests.support.chaos_http import HEAD, closed_within, connect, many, sent_until_refused
from tests.support.chaos_system import System
from tests.support.chaos_table import ChaosRow, ChaosTable

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

CLOSED_WITHIN_S = 60.0
HONEST_WITHIN_S = 5.0
BODY = HEAD + b"Content-Length: 100\r\n\r\n{"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
MAX_BODY_BYTES = 8 << 20


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
        assert opened
    honest.check(row)
    system.check_left(row, before)
    assert num_open == 0


def test_half_sent_heads(system: System, chaos: ChaosTable) -> None:
    with chaos.row("HTTP: 500 half-sent heads") as row:
        attack(system, row, 500, HEAD)


def test_unfinished_bodies(system: System, chaos: ChaosTable) -> None:
    with chaos.row("HTTP: 340 unfinished bodies") as row:
        attack(system, row, 340, BODY)


def test_an_endless_body(system: System, chaos: ChaosTable) -> None:
    with chaos.row("HTTP: a chunked body of 100 MiB") as row, connect(system.http) as connection:
        connection.sendall(CHUNKED)
        chunk = b"10000\r\n" + b" " * (1 << 16) + b"\r\n"
        sent, answer = sent_until_refused(connection, chunk, 100 << 20)
        closed, _ = closed_within([connection], 10.0)
        row.seen = f"{answer.decode()!r} after {sent >> 20} MiB, closed: {bool(closed)}"
        assert b"413" in answer or not answer
        assert sent < 4 * MAX_BODY_BYTES
        assert closed


@pytest.mark.parametrize(
    ("name", "headers"),
    [("10,000 headers", b"a: b\r\n" * 10_000), ("a header of 1 MB", b"a: " + b"b" * 1_000_000 + b"\r\n")],
)
def test_heads_beyond_limits(system: System, chaos: ChaosTable, name: str, headers: bytes) -> None:
    with chaos.row(f"HTTP: {name}") as row, connect(system.http) as connection:
        _, answer = sent_until_refused(
            connection, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n", 1
        )
        # A head that was read whole leaves a connection that can be used.
        closed = not answer and bool(closed_within([connection], 10.0)[0])
        row.seen = answer.decode() or ("closed" if closed else "no answer")
        assert closed or b" 431 " in answer or b" 400 " in answer
        assert system.asks("GET", "/healthz", 5.0) == 200


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


def test_a_request_id_comes_back(system: System, chaos: ChaosTable) -> None:
    with chaos.row("HTTP: x-request-id") as row:
        connection = http.client.HTTPConnection(system.http, timeout=10)
        connection.request("GET", "/v1/models", headers={"X-Request-Id": "chaos-42"})
        row.seen = f"answered with {connection.getresponse().headers.get('x-request-id')}"
        connection.close()
        assert "chaos-42" in row.seen
