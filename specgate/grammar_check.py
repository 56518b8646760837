"""Whether a grammar can be used, and afforded: tried in a process of its own, which a bad one ends in place of ours.

The library recurses without checking its stack, and its own limits hold for reading an answer, not for compiling:
150 characters of schema may take gigabytes. So the kernel sets limits for each grammar.

Run as a module it is that process: a grammar a line, an answer a line. It forks for each, so nothing is left of any.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from specgate.errors import InternalError, InvalidArgument
from specgate.grammar import compiled, limits, usable
from specgate.types import Grammar, GrammarKind

if TYPE_CHECKING:
    from llguidance import LLTokenizer

CPU_S = 2
MEMORY_BYTES = 128 << 20
STACK_BYTES = 64 << 20
"""The kernel leaves at least 128 MiB for it. A service that compiles a checked grammar needs more than that."""
_BASE_LIMITS = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: CPU_S, resource.RLIMIT_STACK: STACK_BYTES}
_TOO_DEAR = f"takes more than {CPU_S} s of CPU time or {MEMORY_BYTES >> 20} MiB to compile, or is nested too deeply"
CHECK_S = 10 * CPU_S
"""From the question to the answer: on a machine so busy that it gets a tenth of a core a grammar is still checked."""
START_S = 30.0
"""For the start of the process on top: it reads the library from a disk."""
_ATTEMPTS = 2
"""A process that was ended or stopped from outside is started again."""

_Process = subprocess.Popen[bytes]


class GrammarCheck:
    """Checks one grammar at a time: call it from one thread. Its process is started for the first one.

    Args:
        check_s: seconds after which a process that does not answer is ended.
    """

    def __init__(self, check_s: float = CHECK_S) -> None:
        self._check_s = check_s
        self._process: _Process | None = None

    def usable(self, grammar: Grammar) -> Grammar:
        """Return a grammar as services take it: see ``specgate.grammar.usable``.

        Raises:
            InvalidArgument: it cannot be used, or costs too much; the field is the place in the grammar, as far as that
                is known.
            InternalError: there is no process that could check it.
        """
        question = json.dumps({"kind": grammar.kind, "text": grammar.text}).encode() + b"\n"
        answer = json.loads(self._answer(question))
        if "text" in answer:
            return Grammar(GrammarKind(answer["kind"]), answer["text"])
        raise InvalidArgument(answer.get("field", f"grammar.{grammar.kind}"), answer["problem"])

    def _answer(self, question: bytes) -> bytes:
        for _ in range(_ATTEMPTS):
            limit_s = self._check_s if self._process else self._check_s + START_S
            process = self._process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(OSError), _killed_after(limit_s, process):
                process.stdin.write(question)
                process.stdin.flush()
                if (answer := process.stdout.readline()).endswith(b"\n"):
                    return answer
            _end(process)
            self._process = None
        raise InternalError("the process that checks grammars does not answer")

    def _start(self) -> _Process:
        # What we are imported from may not be where another interpreter looks; it is the only place where it may look:
        # with -P not in the folder that we were started in.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # The library's last words, which quote the client's text.
                stderr=subprocess.DEVNULL,
                # Ctrl-C goes to us alone; and the process is ended together with its forks.
                process_group=0,
            )
        except OSError as error:
            raise InternalError(f"the process that checks grammars does not start: {error.strerror}") from error
        weakref.finalize(self, _end, process)
        return process


@contextmanager
def _killed_after(limit_s: float, process: _Process) -> Iterator[None]:
    """End the process if the block takes longer: writing to it and reading from it then return at once."""
    timer = threading.Timer(limit_s, _kill, (process,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _kill(process: _Process) -> None:
    # Once it was waited for, its number may belong to another process.
    if process.returncode is None:
        # A fork that was stopped holds the pipe that we read from.
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: _Process) -> None:
    _kill(process)
    # With its pipes; what was not sent yet goes nowhere.
    with suppress(OSError), process:
        pass


def main() -> None:
    """Answer until the input ends, which it does with the process that asks."""
    from llguidance import LLTokenizer

    # The cost of building a grammar does not depend on the tokenizer.
    tokenizer = LLTokenizer("byte")
    for question in sys.stdin.buffer:
        reading, writing = os.pipe()
        process_id = os.fork()
        if process_id == 0:
            _set_limits()
            with open(writing, "wb") as file:
                file.write(_line(_tried(json.loads(question), tokenizer)))
            os._exit(0)
        os.close(writing)
        # It may be ended during its answer, or after it: we write one line in any case.
        with open(reading, "rb") as file:
            answer = file.read()
        _, status = os.waitpid(process_id, 0)
        sys.stdout.buffer.write(answer if status == 0 else _line({"problem": _TOO_DEAR}))
        sys.stdout.buffer.flush()


def _set_limits() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    for kind, limit in {**_BASE_LIMITS, resource.RLIMIT_AS: held + MEMORY_BYTES}.items():
        _, most = resource.getrlimit(kind)
        # The caller may have set a lower hard limit, such as `ulimit -s`, which cannot be raised.
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (limit, limit))


def _tried(question: dict[str, Any], tokenizer: "LLTokenizer") -> dict[str, str]:
    from llguidance import LLMatcher

    try:
        grammar = usable(Grammar(GrammarKind(question["kind"]), question["text"]))
    except InvalidArgument as error:
        return {"field": error.field, "problem": error.problem}
    # Its cost counts; whether it goes together with a model's tokens is for the services to say.
    LLMatcher(tokenizer, compiled(grammar), log_level=0, limits=limits()).compute_bitmask()
    return {"kind": grammar.kind, "text": grammar.text}


def _line(answer: dict[str, str]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


if __name__ == "__main__":
    main()
