"""What is logged while a test looks on, and under which request id."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from specgate.logs import REQUEST_ID


@dataclass(frozen=True, slots=True)
class Line:
    request_id: str
    text: str
    is_trace: bool


@dataclass(slots=True)
class Heard:
    """``text`` is a record's message, and the traceback that came with it."""

    lines: list[Line] = field(default_factory=list)

    def starting(self, *starts: str) -> list[Line]:
        return [line for line in self.lines if line.text.startswith(starts)]


class _Listener(logging.Handler):
    def __init__(self, heard: Heard) -> None:
        super().__init__()
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.lines.append(Line(REQUEST_ID.get(), self.format(record), bool(record.exc_info)))


QUIET = ("uvicorn.access", "httpx2")
"""The one is quiet in every process of ours, the other is the tests' own client."""


@contextmanager
def hearing() -> Iterator[Heard]:
    """All that a process of ours logs at the default level."""
    heard, levels = Heard(), {"": logging.INFO, **dict.fromkeys(QUIET, logging.WARNING)}
    before = {name: logging.getLogger(name).level for name in levels}
    listener = _Listener(heard)
    logging.getLogger().addHandler(listener)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield heard
    finally:
        logging.getLogger().removeHandler(listener)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def kept_logging() -> Iterator[None]:
    """Around what sets up the logging of a process: this one belongs to the tests."""
    root, doors = logging.getLogger(), [logging.getLogger(f"uvicorn.{name}") for name in ("access", "error")]
    handlers, level = root.handlers, root.level
    root.handlers = []
    try:
        yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers = handlers
        root.setLevel(level)
        for logger in doors:
            logger.setLevel(logging.NOTSET)
