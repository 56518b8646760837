"""Grammars that would end the process which compiles them, take its memory or its time, or let other answers pass."""

import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from specgate import grammar_check
from specgate.errors import InternalError, InvalidArgument
from specgate.grammar_check import GrammarCheck
from specgate.types import Grammar, GrammarKind

LOWEST = {"minimum": -(1 << 63), "maximum": -(1 << 63)}
PRIMES = (65_537, 65_539, 65_543, 65_551)
SOUND = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')


@pytest.fixture(scope="module")
def check() -> Iterator[GrammarCheck]:
    check = GrammarCheck()
    yield check
    # Whatever was refused, it goes on.
    assert check.usable(SOUND) == SOUND


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


DEAR = {
    "recursion without end": schema({"type": "integer", **LOWEST}),
    "the same in Lark": Grammar(GrammarKind.LARK, f"start: %json {json.dumps({'type': 'integer', **LOWEST})}"),
    "gigabytes of 150 characters": schema({"allOf": [{"type": "integer", "multipleOf": one} for one in PRIMES]}),
    "a long regex": Grammar(GrammarKind.REGEX, "a?" * 100_000),
    "deep JSON": Grammar(GrammarKind.JSON_SCHEMA, '{"items":' * 9_000 + "{}" + "}" * 9_000),
}


@pytest.mark.parametrize("name", DEAR)
def test_what_costs_too_much_is_refused(check: GrammarCheck, name: str) -> None:
    with pytest.raises(InvalidArgument, match="takes more than") as refused:
        check.usable(DEAR[name])
    assert refused.value.field == f"grammar.{DEAR[name].kind}"


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"type": "integer", "minimum": (1 << 53) + 1}, "minimum"),
        ({"type": "integer", "minimum": -1e20, "maximum": -1e20}, "minimum"),
        ({"type": ["integer", "null"], "exclusiveMaximum": 1 << 64}, "exclusiveMaximum"),
        ({"properties": {"minimum": {"type": "number", "maximum": (1 << 60) + 1}}}, "properties.minimum.maximum"),
        ({"items": {"const": {"a": [(1 << 53) + 1]}}}, "items.const"),
        ({"$ref": "#/a~1b/0", "a/b": [{"const": (1 << 53) + 1}]}, "a/b.0.const"),
        ({"anyOf": [{"type": "null"}, {"enum": [1, (1 << 60) + 1]}]}, "anyOf.1.enum"),
    ],
)
def test_numbers_that_would_be_rounded_are_refused_by_their_place(check: GrammarCheck, value: Any, place: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be kept exactly") as refused:
        check.usable(schema(value))
    assert refused.value.field == f"grammar.json_schema.{place}"


@pytest.mark.parametrize(
    "value",
    [
        {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1},
        {"type": "integer", "minimum": 1 - (1 << 53), "maximum": (1 << 53) - 1},
        {"type": "number", "exclusiveMinimum": 0.1, "maximum": 2.5, "multipleOf": 0.01},
        {"enum": [True, None, 1 << 53, 0.1, "9007199254740993"]},
        {"properties": {"const": {"type": "null"}, "minimum": {"const": 3}}},
        {"type": "string", "maxLength": 100_000},
        {"enum": [f"value {i}" for i in range(5_000)]},
    ],
)
def test_what_is_kept_and_affordable_is_taken(check: GrammarCheck, value: Any) -> None:
    assert check.usable(schema(value)) == schema(value)


def test_a_process_that_somebody_ends_is_started_again() -> None:
    check = GrammarCheck()
    assert check.usable(SOUND) == SOUND
    assert isinstance(check._process, subprocess.Popen)
    check._process.kill()
    assert check.usable(SOUND) == SOUND


LONG = schema({"enum": ["x" * 200_000]})
"""More than a pipe holds."""


@pytest.mark.parametrize("asked", [SOUND, LONG], ids=["it does not answer", "it does not read"])
def test_a_process_that_is_stopped_is_replaced(asked: Grammar) -> None:
    check = GrammarCheck(check_s=0.2)
    assert check.usable(SOUND) == SOUND
    stopped = check._process
    assert isinstance(stopped, subprocess.Popen)
    stopped.send_signal(signal.SIGSTOP)
    assert check.usable(asked) == asked
    assert stopped.returncode == -signal.SIGKILL


def test_one_that_is_stopped_over_a_grammar_is_ended_with_its_fork() -> None:
    # As process 1 of a container we inherit the fork, and the kernel does not wake it when its parent has ended.
    command = "import ctypes\nassert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER\n"
    command += "from tests.specgate.test_grammar_check import *\ncheck_with_a_stopped_fork()"
    subprocess.run([sys.executable, "-c", command], check=True)


def check_with_a_stopped_fork() -> None:
    check = GrammarCheck(check_s=0.2)
    assert check.usable(SOUND) == SOUND
    stopped = check._process
    assert isinstance(stopped, subprocess.Popen)
    stopping = threading.Thread(target=stop_fork_of, args=(stopped.pid,))
    stopping.start()
    with pytest.raises(InvalidArgument, match="takes more than"):
        check.usable(DEAR["a long regex"])
    stopping.join()
    assert stopped.returncode == -signal.SIGKILL


def stop_fork_of(pid: int) -> None:
    """Stop the process that tries a grammar, once there is one."""
    # Where the machine is so busy that the process is ended first, there is nothing to stop.
    with suppress(OSError):
        while not (forks := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            time.sleep(0.001)
        os.kill(int(forks[0]), signal.SIGSTOP)


def test_it_is_ours_wherever_it_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert GrammarCheck().usable(SOUND) == SOUND


def test_limits_of_whoever_started_us_are_kept() -> None:
    command = f"import resource; resource.setrlimit(resource.RLIMIT_STACK, ({8 << 20}, {8 << 20}))\n"
    command += "from tests.specgate.test_grammar_check import *\nassert GrammarCheck().usable(SOUND) == SOUND"
    subprocess.run([sys.executable, "-c", command], check=True)


def test_who_cannot_start_a_process_is_told_so() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(InternalError, match="does not start: Too many open files"):
            GrammarCheck().usable(SOUND)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_one_that_is_ended_behind_its_answer_gives_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [json.dumps({"kind": "regex", "text": text}).encode() + b"\n" for text in ("a", "b")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"".join(asked))))
    monkeypatch.setattr(grammar_check, "_set_limits", lambda: None)
    monkeypatch.setattr(os, "_exit", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    # A file, which both processes write to.
    with open(tmp_path / "told", "w") as told:
        monkeypatch.setattr(sys, "stdout", told)
        grammar_check.main()
    lines = (tmp_path / "told").read_text().splitlines()
    assert [json.loads(line).keys() for line in lines] == [{"problem"}] * 2
