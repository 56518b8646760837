"""Processes as Linux reports them: who descends from whom, memory, descriptors, and where they listen."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from specgate.kernel_sockets import listening
from specgate.rpc.endpoint import is_loopback

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GONE = (OSError, ValueError, IndexError)
"""What reading about a process raises that has just ended."""


class Listener(NamedTuple):
    """A TCP address that a process listens on."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


def descendants(pid: int) -> dict[int, str]:
    """Return the command line of each process that ``pid`` started, and of those that they started, by process id."""
    children: dict[int, list[int]] = {}
    for one in _all_pids():
        with suppress(*GONE):
            # The name may hold blanks and brackets; what follows it does not.
            parent = int((_PROC / str(one) / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(one)
    found: dict[int, str] = {}
    todo = children.get(pid, [])
    while todo:
        one = todo.pop()
        found[one] = command_line(one)
        todo += children.get(one, [])
    return found


def command_line(pid: int) -> str:
    """Return how a process was started, or what it calls itself; empty where it is gone."""
    with suppress(*GONE):
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def rss_mb(pid: int) -> float:
    """Return the memory that a process holds, in MB; 0 where it is gone."""
    with suppress(*GONE):
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES / 1e6
    return 0.0


def num_descriptors(pid: int) -> int:
    """Return how many files and sockets a process holds open; 0 where it is gone."""
    with suppress(*GONE):
        return len(os.listdir(_PROC / str(pid) / "fd"))
    return 0


def listeners(pid: int) -> list[Listener]:
    """Return where a process listens, by TCP; nothing where it is gone, or not ours to look at."""
    mine = set(_socket_inodes(pid))
    with suppress(*GONE):
        found = listening(_PROC / str(pid) / "net")
        return sorted(Listener(one.host, one.port) for one in found if one.inode in mine)
    return []


def _socket_inodes(pid: int) -> Iterator[int]:
    with suppress(*GONE):
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            with suppress(*GONE):
                name = str(descriptor.readlink())
                if name.startswith("socket:["):
                    yield int(name[8:-1])


def _all_pids() -> Iterator[int]:
    return (int(one.name) for one in _PROC.iterdir() if one.name.isdecimal())
