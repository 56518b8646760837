"""Whose processes listen at an address, and that nobody is asked where a stranger's do."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("ray")

from orchestrator.cluster.find import first_that_answers
from orchestrator.cluster.listeners import check_listener
from specgate.errors import ServiceUnavailable
from tests.support.fake_services import unused_endpoint
from tests.support.ray_cluster import RAY_MARKS

pytestmark = RAY_MARKS

STRANGER = 65_534


@contextmanager
def listening(host: str, at: str) -> Iterator[tuple[socket.socket, str]]:
    """Yield a socket that listens, and its address as seen from ``at``."""
    everywhere = host == "::"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=everywhere) as server:
        server.setblocking(False)
        yield server, f"{at}:{server.getsockname()[1]}"


def hand_to_stranger(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the socket another user's: only root can; for anybody else, we become another user."""
    if os.getuid() == 0:
        os.fchown(server.fileno(), STRANGER, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: STRANGER)


PLACES = [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("0.0.0.0", "localhost")]
if socket.has_dualstack_ipv6():
    PLACES += [("::", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]")]


@pytest.mark.parametrize(("host", "at"), PLACES)
def test_our_own_listener_is_believed_and_a_strangers_is_not(
    host: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(host, at) as (server, address):
        check_listener(address)
        hand_to_stranger(server, monkeypatch)
        with pytest.raises(
            ServiceUnavailable, match=r"^another user's process \(uid \d+\) listens there; .*RAY_ADDRESS"
        ):
            check_listener(address)


def test_who_cannot_be_seen_is_not_believed_and_another_machine_is_not_looked_at() -> None:
    with pytest.raises(ServiceUnavailable, match="nothing is seen to listen there"):
        check_listener(unused_endpoint())
    with pytest.raises(ServiceUnavailable, match="it cannot be found out who listens there"):
        check_listener("host.invalid:6379")
    # An address that is kept for documentation is nobody's.
    check_listener("192.0.2.1:6379")


def test_a_stranger_at_an_address_that_ray_has_left_is_not_even_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with listening("127.0.0.1", "127.0.0.1") as (server, address):
        hand_to_stranger(server, monkeypatch)
        assert first_that_answers([address], said.append, give_up_s=1.0) is None
        with pytest.raises(BlockingIOError):
            server.accept()
    assert "another user's process" in said[0]
