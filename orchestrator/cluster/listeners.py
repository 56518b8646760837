"""Who listens at an address of this machine: the kernel's tables have the user of every socket."""

import errno
import socket
from collections.abc import Iterator

from orchestrator.cluster.address import ADDRESS_VARIABLE, is_trusted
from specgate.errors import ServiceUnavailable
from specgate.kernel_sockets import listening, plain_ip
from specgate.rpc.endpoint import is_loopback, split_endpoint

EVERYWHERE = ("0.0.0.0", "::")


def check_listener(address: str) -> None:
    """Check that only processes of this user or of root listen at ``address``; another machine's passes, too.

    Raises:
        ServiceUnavailable: another user listens there, nobody does, or it cannot be found out.
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


def is_on_loopback_alone(address: str) -> bool:
    """Return whether the port of ``address`` is open on this machine's loopback, and on no other interface.

    Raises:
        OSError, ValueError: see ``listening``.
    """
    host, port = split_endpoint(address)
    return is_loopback(host) and all(is_loopback(one.host) for one in listening() if one.port == port)


def _ips(host: str) -> set[str]:
    return {plain_ip(str(found[4][0])) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


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
    return (one.uid for one in listening() if one.port == port and one.host in (ip, *EVERYWHERE))
