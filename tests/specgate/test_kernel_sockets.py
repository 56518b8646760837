"""Sockets of our own, as the kernel's tables tell them."""

import os
import socket

import pytest

from specgate.kernel_sockets import listening, plain_ip


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_socket_that_listens_is_told_with_its_user_and_inode(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        found = [one for one in listening() if one.port == port]
        assert (host, os.fstat(server.fileno()).st_ino) in [(one.host, one.inode) for one in found]
        assert os.getuid() in [one.uid for one in found]


def test_a_connection_is_no_socket_that_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getsockname()[1] not in [one.port for one in listening() if one.host == "127.0.0.1"]


def test_an_address_of_version_4_is_unwrapped() -> None:
    assert plain_ip("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_ip("0:0::1") == "::1"
