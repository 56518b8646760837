"""A service's life as a process: flags, load, listen, ready, drain."""

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import uvloop

from specgate.errors import InvalidArgument, SpecgateError
from specgate.garbage import freeze_loaded
from specgate.logs import configure_logs
from specgate.service.config import ServiceConfig, parse_flags
from specgate.service.replica import Replica


def main(role: str, argv: Sequence[str] | None = None) -> int:
    """Run one service to its end; return its exit code: 0 after a drain, 1 for a refusal, 2 for a bad flag."""
    try:
        config = parse_flags(role, argv)
        _configure_logs(role, config)
        _prepare_process(config)
        uvloop.run(_serve(role, config))
    except InvalidArgument as error:
        print(f"{role}-svc: {error}", file=sys.stderr)
        return 2
    except SpecgateError as error:
        print(f"{role}-svc: {error.reason}: {error}", file=sys.stderr)
        return 1
    return 0


def _configure_logs(role: str, config: ServiceConfig) -> None:
    file = Path(config.log_file) if config.log_file else None
    try:
        configure_logs(f"{role}-{os.getpid()}", as_json=config.log_json, file=file, level=config.log_level)
    except OSError as error:
        raise InvalidArgument("--log-file", f"{file} cannot be written: {error.strerror}") from None


def _prepare_process(config: ServiceConfig) -> None:
    """Pin the process before torch starts its threads."""
    if config.exit_with_stdin:
        threading.Thread(target=_exit_with_stdin, name="parent-watch", daemon=True).start()
    if config.cpu is not None:
        cores = os.sched_getaffinity(0)
        if config.cpu not in cores:
            raise InvalidArgument("--cpu", f"{config.cpu} is not one of the cores {sorted(cores)} of this process")
        os.sched_setaffinity(0, {config.cpu})
    # Before there is anything to drain, a stop is just a stop.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def _exit_with_stdin() -> None:
    # By descriptor: a buffered reader is locked while it waits, and the interpreter cannot end around that.
    while os.read(0, 4096):
        pass
    os._exit(0)


async def _serve(role: str, config: ServiceConfig) -> None:
    replica = Replica(role, config)
    if config.json_events:
        await replica.start(_tell_json, _notice_json)
    else:
        await replica.start(_tell_human)
    freeze_loaded()
    _say({"event": "ready", "endpoint": replica.endpoint, "role": role, "model": config.model})
    await replica.run()


def _say(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


def _tell_json(stage: str, done: int, total: int) -> None:
    _say({"event": "loading", "stage": stage, "done": done, "total": total})


def _notice_json(text: str) -> None:
    _say({"event": "notice", "text": text})


def _tell_human(stage: str, done: int, total: int) -> None:
    print(f"{stage}: {'done' if done == total else '...'}", file=sys.stderr, flush=True)
