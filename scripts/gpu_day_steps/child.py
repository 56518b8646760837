"""The process of one step: ``python -m gpu_day_steps.child TARGET CONTEXT`` writes events to standard output.

An event is a JSON object on a line of its own: a row, a sentence of progress, or at last the result.
"""

import importlib
import json
import logging
import os
import sys
import traceback
from typing import Any, TextIO

from gpu_day_steps.step import CheckFailed, Context, Emit, Status


def main() -> None:
    """Run the step and leave at once: a device that hangs while it is given back must not cost the step its result."""
    emit = _emit_to(_own_output())
    target, context = sys.argv[1:]
    logging.getLogger().addHandler(_ToldWarnings(emit))
    status, told = _outcome(target, Context.from_json(context, emit))
    emit({"result": str(status), "told": told})
    sys.stderr.flush()
    os._exit(0)


class _ToldWarnings(logging.Handler):
    """Shows warnings: why there are no graphs, for one, is told by a log line alone."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(logging.WARNING)
        self._emit = emit

    def emit(self, record: logging.LogRecord) -> None:
        self._emit({"progress": f"{record.levelname}: {record.getMessage()}"})


def _own_output() -> TextIO:
    """Keep standard output for events; what anybody prints goes to the log, as do the processes that are started."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return output


def _emit_to(output: TextIO) -> Emit:
    def emit(event: dict[str, Any]) -> None:
        output.write(json.dumps(event) + "\n")
        output.flush()

    return emit


def _outcome(target: str, context: Context) -> tuple[Status, str]:
    module, _, function = target.partition(":")
    try:
        return Status.PASS, str(getattr(importlib.import_module(module), function)(context))
    except CheckFailed as failure:
        return Status.FAIL, str(failure)
    # A step may fail in any way; the day goes on, and tells how.
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        # The last words of a process stand behind what we say of it.
        told = lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1].strip()}"
        return Status.FAIL, f"{type(error).__name__}: {told}"


if __name__ == "__main__":
    main()
