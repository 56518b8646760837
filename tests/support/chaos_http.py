"""Clients that speak HTTP badly: they send half of it, or never end, or read a byte a second."""

import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

ATTACKER = "127.0.0.66"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connect(endpoint: str, timeout_s: float = 10.0) -> socket.socket:
    """Return a connection from the attackers' address."""
    host, _, port = endpoint.rpartition(":")
    return socket.create_connection((host, int(port)), timeout_s, source_address=(ATTACKER, 0))


@contextmanager
def many(endpoint: str, number: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Yield so many connections that have sent the same; those that the door does not take are left out."""
    opened = []
    for _ in range(number):
        with suppress(OSError):
            opened.append(connect(endpoint))
            opened[-1].sendall(sent)
    try:
        yield opened
    finally:
        for one in opened:
            one.close()


def closed_within(connections: Sequence[socket.socket], timeout_s: float) -> tuple[int, float]:
    """Return how many the other side has closed, and after how many seconds the last one of those."""
    start_s = last_s = time.monotonic()
    left = list(connections)
    poll_s = 0.2
    while left and time.monotonic() - start_s < timeout_s:
        # select() takes no descriptor above 1023.
        poller = select.poll()
        by_number = {one.fileno(): one for one in left}
        for number in by_number:
            poller.register(number, select.POLLIN)
        for number, _ in poller.poll(poll_s * 1e3):
            if _has_ended(by_number[number]):
                left.remove(by_number[number])
                last_s = time.monotonic()
    return len(connections) - len(left), last_s - start_s


def _has_ended(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1 << 16)
    except TimeoutError:
        return False
    except OSError:
        return True


def send_and_leave(port: int, data: bytes) -> None:
    """Send bytes to a port of this machine, wait a moment for an answer, and leave."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2.0) as connection:
        connection.sendall(data)
        connection.settimeout(0.2)
        connection.recv(64)
