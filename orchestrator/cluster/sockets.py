"""The ports beyond loopback that this process and this machine's Ray listen on, from the list of open sockets."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ray

# Ray brings it, and puts it in place when it is imported.
import psutil  # type: ignore[import-untyped]  # isort: skip

from specgate.rpc.endpoint import is_loopback

EVERYWHERE = "*"
"""All interfaces, of either version of IP."""
REPLICA = "ServeReplica:"


class OpenPort(NamedTuple):
    """One port, at ``host`` ("*" is every interface), and the process that has it open."""

    host: str
    port: int
    process: str


def open_ports() -> list[OpenPort]:
    """Return the ports beyond loopback of this process and of its Ray on this machine.

    Sockets of other users' processes cannot be read and are left out.
    """
    found = {
        OpenPort(_shown(connection.laddr.ip), connection.laddr.port, name)
        for process, name in _processes().items()
        for connection in _sockets(process)
        if connection.status == psutil.CONN_LISTEN and not is_loopback(connection.laddr.ip)
    }
    return sorted(found, key=lambda one: (one.process, one.host, one.port))


def lines_of(ports: list[OpenPort]) -> list[str]:
    """Return a line for each process and interface: the ports, then who has them open."""
    grouped: dict[tuple[str, str], list[int]] = {}
    for one in ports:
        grouped.setdefault((one.process, one.host), []).append(one.port)
    return [f"{host}:{','.join(map(str, numbers))}  {process}" for (process, host), numbers in grouped.items()]


def _processes() -> Mapping[Any, str]:
    """Return this process, those of the Ray session, and all that they have started, with their names."""
    session = ray.get_runtime_context().get_session_name()
    roots = [psutil.Process(), *(one for one in psutil.process_iter() if session in _command(one))]
    return {process: _name(process) for root in roots for process in (root, *_children(root))}


def _children(process: Any) -> list[Any]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _sockets(process: Any) -> Iterator[Any]:
    try:
        yield from process.net_connections("tcp")
    except psutil.Error:
        return


def _command(process: Any) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _name(process: Any) -> str:
    """Return what Ray or Serve calls a process, or its program."""
    if process.pid == os.getpid():
        return "this command"
    command = _command(process)
    if command.startswith("ray::"):
        title = command.removeprefix("ray::").split(" ")[0].split(".")[0]
        return title.rpartition(":")[2] if title.startswith(REPLICA) else title
    words = command.split(" ")
    scripts = (word for word in words[1:] if word.endswith(".py"))
    program = next(scripts, words[0]) if Path(words[0]).name.startswith("python") else words[0]
    return f"Ray's {Path(program).stem or 'process'}"


def _shown(host: str) -> str:
    return EVERYWHERE if host in ("0.0.0.0", "::") else host
