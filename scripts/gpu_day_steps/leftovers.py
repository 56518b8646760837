"""What a step started and did not end: found by a mark in the environment, which every descendant inherits."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "GPU_DAY_STEP"


def kill_marked(mark: str) -> int:
    """Kill every process whose environment has our mark; return how many there were.

    A service that hangs on the device would hold memory that the next steps need, and slow them down.
    """
    killed: set[int] = set()
    # One of them may start another one while we look.
    while found := set(_marked(f"{MARK}={mark}".encode())) - killed:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
    return len(killed)


def _marked(entry: bytes) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        # Processes come and go, and those of others cannot be read.
        with suppress(OSError):
            if folder.name.isdigit() and entry in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
