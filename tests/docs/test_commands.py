"""The commands in the pages: those marked to be run leave with 0, the others are what the programs take."""

import ast
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.command_lines import problem_of
from tests.support.fake_services import free_port
from tests.support.pages import PAGES, ROOT, Block, blocks, commands

MARKED = [page for page in PAGES if any(block.mark for block in blocks(page.read_text("utf-8")))]
OURS = ("specgate", "orchestrator", "drafter_svc", "verifier_svc", "specgate_lab")
START_S, RUN_S = 200.0, 400.0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_what_the_programs_take(page: Path) -> None:
    text = page.read_text("utf-8")
    problems = {" ".join(command): problem_of(command) for command in commands(text)}
    assert {line: problem for line, problem in problems.items() if problem} == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("orchestrator generat x", "there is no command 'generat'"),
        ("orchestrator generate x --gama 3", "No such option: --gama"),
        ("orchestrator generate x --gate sometimes", "sometimes"),
        ("orchestrator generate one two", "'two' is one argument too many"),
        ("verifier-svc --model PATH --prt 7001", "unrecognized arguments: --prt"),
        (".venv/bin/drafter-svc --device cuda:1 --method sometimes", "invalid choice"),
        ("make demos", "no target 'demos'"),
        ("pip install '.[rai]'", "no extra 'rai'"),
        ("scripts/no_such", "there is no scripts/no_such"),
        ("deploy/no_such.sh --cpu", "there is no deploy/no_such.sh"),
        ("""curl http://h:1/v1/completions -d '{"prompt": "x", "max_token": 3}'""", "max_token"),
        ("cd x && orchestrator serve --prt 1 | tee log", "No such option: --prt"),
    ],
)
def test_a_command_that_would_fail_is_found(line: str, problem: str) -> None:
    for text in (f"```sh\n{line}\n```\n", f"As in\n\n    {line}\n\nit says.\n", f"Call `{line}` first.\n"):
        found = [told for told in map(problem_of, commands(text)) if told]
        assert len(found) == 1, text
        assert problem in found[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_pages_imports_what_exists(page: Path) -> None:
    code = [block.code for block in blocks(page.read_text("utf-8")) if block.language == "python"]
    statements = [one for block in code for one in ast.walk(ast.parse(block)) if isinstance(one, ast.ImportFrom)]
    for statement in statements:
        if statement.module and statement.module.partition(".")[0] in OURS:
            module = importlib.import_module(statement.module)
            assert [name.name for name in statement.names if not hasattr(module, name.name)] == []


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", MARKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_marked_blocks_run(page: Path) -> None:
    """All of a page's marked blocks, in their order, with free ports in place of the page's."""
    with _Shell(page.read_text("utf-8")) as shell:
        for block in shell.marked:
            shell.run(block)


class _Shell:
    """Runs the marked blocks of a page; ends what runs in the background when it is left."""

    def __init__(self, text: str) -> None:
        self._ports = {port: str(free_port()) for port in re.findall(r"--port[ =](\d+)", text)}
        self._background: list[subprocess.Popen[str]] = []
        self.marked = [block for block in blocks(text) if block.mark]

    def run(self, block: Block) -> None:
        """Raise AssertionError unless it leaves with 0, or in the background until its services are healthy."""
        code = re.sub(r"\b\d{4,5}\b", lambda found: self._ports.get(found[0], found[0]), block.code)
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._background.append(process)
        if block.mark == "run in background":
            for port in re.findall(r"--port[ =](\d+)", code):
                _wait_until_healthy(int(port), process)
            return
        output, _ = process.communicate(timeout=RUN_S)
        assert process.returncode == 0, f"{code}\n{output}"

    def __enter__(self) -> "_Shell":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._background:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._background:
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _wait_until_healthy(port: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_S
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(grpc.RpcError):
                answer = health.Check(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            time.sleep(0.1)
    process.kill()
    raise AssertionError(f"nothing serves at port {port}; it printed: {process.communicate()[0]}")
