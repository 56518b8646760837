"""A child process that speaks JSON lines: started, listened to, and ended by its own handle."""

import asyncio
import contextlib
import json
import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from specgate.errors import ServiceUnavailable

_STDERR_LINES = 20
_MAX_LINE_BYTES = 16 << 20
_GRACE_S = 5.0
_LAST_WORDS_S = 1.0


class Child:
    """One ``python -m`` process. Its events are the JSON objects on its standard output, one a line.

    The child has a process group of its own, so that Ctrl-C in the terminal reaches the parent alone, which then
    ends the child in order. If the parent is killed, the child's standard input ends.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("a child is started with all three pipes")
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._last_lines: deque[str] = deque(maxlen=_STDERR_LINES)
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls, module: str, arguments: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})
    ) -> Self:
        """Start ``python -m module``, with this interpreter, and ``environment`` over our own."""
        # -P: a file in the caller's folder must not stand in for a library of the child's.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environment_of_child(), **environment},
            start_new_session=True,
            limit=_MAX_LINE_BYTES,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_words(self) -> str:
        """What it last wrote to standard error."""
        return "\n".join(self._last_lines)

    async def next_event(self) -> dict[str, Any] | None:
        """Return the next event, None once its output has ended. Lines that are no JSON object are left out."""
        while line := await self._stdout.readline():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    return event
        return None

    async def send(self, message: dict[str, Any]) -> None:
        """Write one JSON line to its standard input.

        Raises:
            ServiceUnavailable: it is gone.
        """
        try:
            self._stdin.write(json.dumps(message).encode() + b"\n")
            await self._stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ServiceUnavailable(f"child process {self.pid} is gone: {self.last_words}") from error

    async def wait(self) -> int:
        """Return its exit code once it has ended and its last words are read; minus the signal that killed it."""
        code = await self._process.wait()
        # A grandchild may hold the pipe open for as long as it likes.
        await asyncio.wait({self._listener}, timeout=_LAST_WORDS_S)
        return code

    async def stop(self, grace_s: float = _GRACE_S) -> None:
        """End it: SIGTERM first, SIGKILL when it has not gone after ``grace_s``. Safe to call twice."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self.wait()
        self._listener.cancel()

    async def _listen(self) -> None:
        async for line in self._stderr:
            self._last_lines.append(line.decode(errors="replace").rstrip())


def environment_of_child() -> dict[str, str]:
    """Return ours; where we run from a source tree that is not installed, the child must find it, too."""
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        return dict(os.environ)
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
