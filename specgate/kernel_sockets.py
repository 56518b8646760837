"""The TCP sockets that listen, from Linux's own tables, with the user and the inode of each."""

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC_NET = Path("/proc/net")
"""The tables of this process's network namespace; another process has its own under /proc/PID/net."""
_LISTENS = "0A"


class ListeningSocket(NamedTuple):
    """One socket that takes connections; ``host`` is an IP address, ``inode`` what descriptors of it are called by."""

    host: str
    port: int
    uid: int
    inode: int


def listening(tables: Path = PROC_NET) -> Iterator[ListeningSocket]:
    """Yield each socket that listens by TCP.

    Raises:
        OSError: the tables cannot be read.
        ValueError: they are not written as Linux writes them.
    """
    for table in (tables / "tcp", tables / "tcp6"):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            # Number, local address, remote address, state, queues, timer, retransmits, user, timeout, inode.
            _, local, _, state, _, _, _, uid, _, inode, *_ = line.split()
            host, _, port = local.partition(":")
            if state == _LISTENS:
                yield ListeningSocket(_ip(host), int(port, 16), int(uid), int(inode))


def plain_ip(ip: str) -> str:
    """Return an IP address as it is most shortly written; one of version 4 that version 6 wraps, unwrapped.

    Raises:
        ValueError: it is not an IP address.
    """
    address = ipaddress.ip_address(ip)
    return str(getattr(address, "ipv4_mapped", None) or address)


def _ip(words: str) -> str:
    # The kernel prints 32-bit words in this machine's order.
    data = b"".join(int(words[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(words), 8))
    return plain_ip(str(ipaddress.ip_address(data)))
