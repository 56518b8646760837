"""Who listens at an address of this machine, read from the kernel's tables: they tell the user of every socket."""

import errno
import ipaddress
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.cluster.address import ADDRESS_VARIABLE, is_trusted
from specgate.errors import ServiceUnavailable
from specgate.rpc.endpoint import split_endpoint

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
EVERYWHERE = ("0.0.0.0", "::")
_LISTENING = "0A"


def check_listener(address: str) -> None:
    """Return where only processes of this user or of root listen at ``address``, or where it is another machine's.

    Raises:
        ServiceUnavailable: somebody else listens there, nobody does, or it cannot be found out.
    """
    host, port = split_endpoint(address)
    try:
        here = [ip for ip in _ips(host) if _is_here(ip)]
        users = {user for ip in here for user in _users(ip, port)}
    except (OSError, ValueError) as error:
        raise ServiceUnavailable(f"it cannot be found out who listens there: {error}") from None
    if here and not users:
        raise ServiceUnavailable("nothing is seen to listen there")
    if strangers := sorted(user for user in users if not is_trusted(user)):
        whose = f"another user's process (uid {strangers[0]}) listens there"
        raise ServiceUnavailable(f"{whose}; if it is the head that you mean, name it in {ADDRESS_VARIABLE}")


def _ips(host: str) -> set[str]:
    return {_plain(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


def _is_here(ip: str) -> bool:
    """Return whether ``ip`` is this machine's: only then can a socket be bound to it."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((ip, 0))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return False
        raise
    return True


def _users(ip: str, port: int) -> Iterator[int]:
    """Yield the user of each socket that takes connections to ``ip`` and ``port``."""
    for line in (line for table in TABLES if table.exists() for line in table.read_text().splitlines()[1:]):
        # Number, local address, remote address, state, queues, timer, retransmits, user.
        _, local, _, state, _, _, _, user, *_ = line.split()
        host, _, local_port = local.partition(":")
        if state == _LISTENING and int(local_port, 16) == port and _shown(host) in (ip, *EVERYWHERE):
            yield int(user)


def _shown(host: str) -> str:
    """Return an IP address of the tables as it is written elsewhere: there it is words in this machine's byte order."""
    words = (int(host[start : start + 8], 16) for start in range(0, len(host), 8))
    return _plain(b"".join(word.to_bytes(4, sys.byteorder) for word in words))


def _plain(ip: Any) -> str:
    address = ipaddress.ip_address(ip)
    return str(getattr(address, "ipv4_mapped", None) or address)
