"""Processes as Linux reports them: who descends from whom, memory, descriptors, and where they listen."""

import os
from contextlib import suppress
from pathlib import Path

from specgate.kernel_sockets import ListeningSocket, listening

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GONE = (OSError, ValueError, IndexError)
"""What reading about a process raises that has just ended."""


def descendants(pid: int) -> dict[int, str]:
    """Return the command line of each process that ``pid`` started, and of those that they started, by process id.

    A process may have given itself another title; that of one that has just ended is missing.
    """
    children: dict[int, list[int]] = {}
    for one in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()):
        with suppress(*_GONE):
            # The name may contain blanks and brackets; what follows it does not.
            parent = int((_PROC / str(one) / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(one)
    found: dict[int, str] = {}
    todo = children.get(pid, [])
    while todo:
        one = todo.pop()
        with suppress(*_GONE):
            words = (_PROC / str(one) / "cmdline").read_bytes().replace(b"\0", b" ")
            found[one] = words.decode(errors="replace").strip()
        todo += children.get(one, [])
    return found


def rss_mb(pid: int) -> float:
    """Return the memory that a process holds, in MB; 0 where it has ended."""
    with suppress(*_GONE):
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES / 1e6
    return 0.0


def num_descriptors(pid: int) -> int:
    """Return how many files and sockets a process holds open; 0 where it has ended."""
    with suppress(*_GONE):
        return len(os.listdir(_PROC / str(pid) / "fd"))
    return 0


def listeners(pid: int) -> list[ListeningSocket]:
    """Return where a process listens, by TCP; nothing where it has ended, or belongs to another user."""
    inodes = set()
    with suppress(*_GONE):
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            with suppress(*_GONE):
                name = str(descriptor.readlink())
                if name.startswith("socket:["):
                    inodes.add(int(name[8:-1]))
        return sorted(one for one in listening(_PROC / str(pid) / "net") if one.inode in inodes)
    return []
