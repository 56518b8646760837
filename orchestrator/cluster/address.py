"""Where a Ray cluster may be: the address that was asked for, or what Ray has left on this machine.

Every user may write to the folder in which Ray leaves the address of the latest cluster, and may start a process that
looks like a part of Ray. Only files and processes of this user or of root count.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ray._common.utils import get_ray_address_file

# Ray brings it, and puts it in place when it is imported.
import psutil  # type: ignore[import-untyped]  # isort: skip

from specgate.errors import InvalidArgument
from specgate.rpc.endpoint import join_endpoint, split_endpoint

ADDRESS_VARIABLE = "RAY_ADDRESS"
LOCAL = "local"
AUTO = "auto"
MAX_ADDRESS_BYTES = 300
GCS_FLAG = "--gcs-address="

Say = Callable[[str], None]
"""Shows one line to the user of the command."""


def asked_for() -> str | None:
    """Return the HOST:PORT in RAY_ADDRESS, "local" if it is that word, None if it names no cluster.

    Raises:
        InvalidArgument: it has another form.
    """
    named = os.environ.get(ADDRESS_VARIABLE) or AUTO
    if named in (LOCAL, AUTO):
        return LOCAL if named == LOCAL else None
    try:
        return join_endpoint(*split_endpoint(named))
    except InvalidArgument:
        raise InvalidArgument(ADDRESS_VARIABLE, f"{named!r} is not HOST:PORT of a Ray head, nor {LOCAL!r}") from None


def left_here(say: Say) -> list[str]:
    """Return the addresses that Ray has left on this machine, the latest `ray start` first; ``say`` gets the refused
    ones.
    """
    path = Path(get_ray_address_file(None))
    return list(dict.fromkeys([*read_address(path, say), *_of_raylets()]))


def read_address(path: Path, say: Say) -> Iterator[str]:
    """Yield the address in a file of Ray's, unless it holds none, or another user may have written it."""
    try:
        # Another user may have put a link or a pipe there: it is not followed, and not waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="ascii") as file:
            status = os.fstat(file.fileno())
            text = file.read(MAX_ADDRESS_BYTES).strip()
        address = join_endpoint(*split_endpoint(text))
    except (OSError, ValueError, InvalidArgument):
        return
    # Whether a group has other members cannot be found out for sure. So a file that was written under a umask of 002
    # does not count; the cluster's raylet does.
    if not is_trusted(status.st_uid) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        say(f"{path} names a Ray cluster at {address!r}, and others may have written it: the file is not believed")
        return
    yield address


def _of_raylets() -> Iterator[str]:
    """Yield the addresses of the heads that Ray nodes on this machine belong to."""
    for process in psutil.process_iter():
        with process.oneshot():
            try:
                if process.name() == "raylet" and is_trusted(process.uids().real):
                    yield from _flags(process)
            except psutil.Error:
                continue


def _flags(process: Any) -> Iterator[str]:
    return (flag.removeprefix(GCS_FLAG) for flag in process.cmdline() if flag.startswith(GCS_FLAG))


def is_trusted(uid: int) -> bool:
    """Return whether ``uid`` is this user or root."""
    return uid in (0, os.getuid())
