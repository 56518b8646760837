"""Lines that a person, and a program, can read; in files that nobody else can."""

import json
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specgate import logs
from specgate.logs import REQUEST_ID, LogLevel, configure_logs
from tests.support.heard import kept_logging

log = logging.getLogger("specgate.x")


@pytest.fixture(autouse=True)
def logging_of_tests() -> Iterator[None]:
    with kept_logging():
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "new" / "verifier-3f2a.log"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fail(what: str) -> None:
    try:
        raise ValueError(what)
    except ValueError:
        log.exception("it failed")


def test_a_line_says_when_how_bad_who_where_for_whom_and_what(file: Path) -> None:
    configure_logs("verifier-3f2a", file=file)
    log.warning("%d tokens", 3)
    token = REQUEST_ID.set("abc")
    log.info("hello")
    REQUEST_ID.reset(token)
    log.debug("too little")
    lines = file.read_text().splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{time} INFO specgate.logs verifier-3f2a req=- specgate [\d.]+, process \d+", lines[0])
    assert re.fullmatch(rf"{time} WARNING specgate.x verifier-3f2a req=- 3 tokens", lines[1])
    assert re.fullmatch(rf"{time} INFO specgate.x verifier-3f2a req=abc hello", lines[2])
    assert len(lines) == 3


def test_what_is_logged_cannot_look_like_another_line(file: Path) -> None:
    configure_logs("p", file=file)
    forged = "x\n2026-11-26T14:00:00.123Z INFO specgate.x p req=- \x1b[31m\u2028\ud800all is well"
    log.warning("%s", forged)
    fail(forged)
    lines = file.read_text().split("\n")
    assert sum(line.startswith("20") for line in lines) == 3
    assert not any("\x1b" in line or "\u2028" in line for line in lines)
    assert "  ValueError: x" in lines


def test_json_is_an_object_a_line(file: Path) -> None:
    configure_logs("p", as_json=True, file=file)
    token = REQUEST_ID.set("abc")
    fail("two\nlines \ud800")
    REQUEST_ID.reset(token)
    _, told = (json.loads(line) for line in file.read_text().splitlines())
    assert list(told) == ["time", "level", "logger", "process", "request_id", "message", "exception"]
    assert (told["message"], told["request_id"]) == ("it failed", "abc")
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("ValueError: two\nlines \ud800")


def test_files_are_their_owners_alone_and_stay_small(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_FILE_BYTES", 1000)
    configure_logs("p", file=file)
    for _ in range(100):
        log.warning("x" * 100)
    files = list(file.parent.iterdir())
    assert len(files) == 1 + logs.MAX_OLD_FILES
    assert {mode(one) for one in files} == {0o600}
    assert max(one.stat().st_size for one in files) <= 1000
    assert mode(file.parent) == 0o700


def test_a_file_that_is_there_becomes_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "p.log"
    file.touch(0o644)
    configure_logs("p", file=file)
    assert mode(file) == 0o600


def test_what_is_no_plain_file_keeps_its_mode(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o640)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    configure_logs("p", file=tmp_path / "pipe")
    assert mode(tmp_path / "pipe") == 0o640
    os.close(reader)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "p.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"p\.log"):
        configure_logs("p", file=tmp_path / "p.log")
    assert not (tmp_path / "elsewhere").exists()


def test_the_last_call_holds_and_standard_error_is_the_default(file: Path, capsys: Any) -> None:
    configure_logs("first", file=file)
    configure_logs("second", level=LogLevel.WARNING)
    logging.getLogger("uvicorn.access").info("GET /?key=secret")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    log.warning("here")
    assert re.fullmatch(r".* WARNING specgate.x second req=- here\n", capsys.readouterr().err)
    assert "here" not in file.read_text()
