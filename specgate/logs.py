"""Logs of all processes, in one format: time, level, logger, process, request id, message.

A process calls ``configure_logs`` once, at its start; its modules use ``logging`` as usual.
"""

import json
import logging
import os
import stat
import time
from contextvars import ContextVar
from enum import StrEnum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from specgate import __version__

MAX_FILE_BYTES = 10 << 20
MAX_OLD_FILES = 4
"""What a process keeps of its earlier lines: FILE.1 to FILE.4."""

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that the running task serves, "" if there is none. A task inherits it from its creator."""

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
_log = logging.getLogger(__name__)


class LogLevel(StrEnum):
    """The least that is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


def configure_logs(
    process: str, *, as_json: bool = False, file: Path | None = None, level: LogLevel = LogLevel.INFO
) -> logging.Handler:
    """Send what this process logs to ``file``, or to standard error, and nowhere else.

    Args:
        process: what the lines call this process: its role and a short id.
        as_json: one JSON object a line, instead of text.
        file: readable by its owner alone. It is renamed when it holds MAX_FILE_BYTES, and MAX_OLD_FILES are kept.

    Returns:
        The handler, for loggers that hand nothing on to the root.

    Raises:
        OSError: the file cannot be written.
    """
    handler = logging.StreamHandler() if file is None else _PrivateFile(file)
    handler.setFormatter(_JsonLines() if as_json else _TextLines())
    handler.addFilter(_Context(process))
    # It replaces what an earlier call, or a library, has set up.
    logging.basicConfig(handlers=[handler], level=str(level), force=True)
    # uvicorn logs each request at INFO, with the query, and warns of each bad request and WebSocket upgrade: any client
    # could fill the log.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    _log.info("specgate %s, process %d", __version__, os.getpid())
    return handler


def default_folder() -> Path:
    """Return the folder for logs of this user: ``specgate/logs`` under ``XDG_STATE_HOME``, else ``~/.local/state``."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "specgate" / "logs"


class _PrivateFile(RotatingFileHandler):
    def __init__(self, file: Path) -> None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(file, "a", MAX_FILE_BYTES, MAX_OLD_FILES, "utf-8", errors="backslashreplace")

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, errors=self.errors, opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    # In a folder that others may write to, a link would send our lines to a file of their choice.
    file = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    status = os.fstat(file)
    # The mode above is for a file that is new. One that is no plain file, such as /dev/null, stays everybody's.
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
        os.fchmod(file, 0o600)
    return file


class _Context(logging.Filter):
    """Adds the process and the request id to each record. It drops none."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def filter(self, record: logging.LogRecord) -> bool:
        record.process_name = self._process
        record.specgate_request_id = REQUEST_ID.get()
        return True


class _Lines(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time in UTC, to the millisecond."""
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"

    def trace(self, record: logging.LogRecord) -> str:
        """Return the traceback that came with a record, "" where none did."""
        trace = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        return "\n".join(filter(None, (trace, record.stack_info)))


class _TextLines(_Lines):
    """One line a record; a traceback follows, indented. What is logged cannot look like another record."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = vars(record)
        origin = f"{fields['process_name']} req={fields['specgate_request_id'] or '-'}"
        message = record.getMessage().translate(_CONTROLS)
        line = f"{self.formatTime(record)} {record.levelname} {record.name} {origin} {message}"
        return "\n  ".join((line, *(part.translate(_CONTROLS) for part in self.trace(record).splitlines())))


class _JsonLines(_Lines):
    """One object a line. ``request_id`` and ``exception`` are null where there is none."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = vars(record)
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "process": fields["process_name"],
            "request_id": fields["specgate_request_id"] or None,
            "message": record.getMessage(),
            "exception": self.trace(record) or None,
        }
        return json.dumps(line)
