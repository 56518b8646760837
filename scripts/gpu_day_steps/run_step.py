"""One step in a process of its own, with its own time limit."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gpu_day_steps.leftovers import MARK, kill_marked
from gpu_day_steps.step import Context, Result, Status, Step, Where

KEPT_LOG_LINES = 25
LEAVE_S = 5.0
"""How long a process that has told its result may take to leave."""

Say = Callable[[str], None]
"""Shows a line to a person."""
Events = queue.SimpleQueue[dict[str, Any] | None]
"""What a step's process tells; None once its output has ended."""


@dataclass
class _Seen:
    """What the step's process has told so far."""

    say: Say
    rows: list[dict[str, Any]] = field(default_factory=list)
    last_progress: str = ""
    result: tuple[Status, str] | None = None

    def take(self, event: dict[str, Any]) -> None:
        if "row" in event:
            self.rows.append(event["row"])
            self.say("    " + ", ".join(f"{name} {_short(value)}" for name, value in event["row"].items()))
        elif "progress" in event:
            self.last_progress = event["progress"]
            self.say(f"    … {self.last_progress}")
        elif "result" in event:
            self.result = Status(event["result"]), event["told"]


def run_step(step: Step, where: Where, limit_s: float, say: Say) -> Result:
    """Run the step, for ``limit_s`` at the most; nothing that it started is left when this returns."""
    start_s, mark, seen = time.monotonic(), uuid.uuid4().hex, _Seen(say)
    log = where.scratch / f"{step.name.replace('/', '_')}.log"
    with log.open("wb") as errors:
        child = _start(step, where, limit_s, mark, errors)
        events: Events = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(child.stdout, events), daemon=True)
        reader.start()
        try:
            in_time = _listen(events, seen, start_s + limit_s)
            with suppress(subprocess.TimeoutExpired):
                child.wait(LEAVE_S if in_time else 0)
        finally:
            code = child.poll()
            child.kill()
            kill_marked(mark)
            # One that is stuck in the driver of a lost device cannot be killed; the day goes on without it.
            with suppress(subprocess.TimeoutExpired):
                child.wait(LEAVE_S)
            reader.join(LEAVE_S)
    status, told = seen.result or (Status.FAIL, _why_none(seen, code, limit_s))
    lines = _last_lines(log) if status is Status.FAIL else ()
    return Result(step.name, status, round(time.monotonic() - start_s, 1), told, tuple(seen.rows), lines)


def _start(step: Step, where: Where, limit_s: float, mark: str, errors: IO[bytes]) -> "subprocess.Popen[str]":
    context = Context(where, step.argument, limit_s).to_json()
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gpu_day_steps.child", step.target, context],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        cwd=where.root,
        # On a busy CPU the threads of tiny models wait for each other most of the time.
        env={**os.environ, **({"OMP_NUM_THREADS": "1"} if where.dry else {}), MARK: mark},
        # Ctrl-C reaches us alone, and we end the step.
        start_new_session=True,
    )


def _listen(events: Events, seen: _Seen, end_s: float) -> bool:
    """Take events until the result, or the end of the output; return whether that was in time."""
    while seen.result is None:
        try:
            event = events.get(timeout=max(0.0, end_s - time.monotonic()))
        except queue.Empty:
            return False
        if event is None:
            return True
        seen.take(event)
    return True


def _read(output: IO[str], events: Events) -> None:
    with output:
        for line in output:
            with suppress(ValueError):
                events.put(json.loads(line))
    events.put(None)


def _why_none(seen: _Seen, code: int | None, limit_s: float) -> str:
    """Return why a step has no result."""
    behind = f"; the last that it told: {seen.last_progress}" if seen.last_progress else ""
    if code is None:
        return f"ended after its limit of {limit_s:.0f} s{behind}"
    return (f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}") + behind


def _last_lines(log: Path) -> tuple[str, ...]:
    return tuple(log.read_text("utf-8", "replace").splitlines()[-KEPT_LOG_LINES:])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
