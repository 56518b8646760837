"""The programs in clients/ as their readers would run them, against a real door over the fake model."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from orchestrator.api.grpc.service import GrpcDoor
from orchestrator.api.settings.listen import Listen, TlsSettings
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from tests.orchestrator.api.queues import Room, dying_after, expected, open_room
from tests.specgate.rpc.certificates import Certificates
from tests.support.fakes import FakeVerifier, Fault

ROOT = Path(__file__).resolve().parents[3]
NODE_CLIENT = ROOT / "clients" / "node"
CLIENT_LIMIT_S = 60.0
Hanging = partial(FakeVerifier, faults={2: Fault.HANG})


@dataclass(frozen=True, slots=True)
class Ended:
    """How a client ended."""

    code: int | None
    out: str
    err: str


async def start(*command: str, **environ: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=pipe, cwd=ROOT, env={**os.environ, **environ}
    )


async def end_of(process: asyncio.subprocess.Process) -> Ended:
    try:
        out, err = await asyncio.wait_for(process.communicate(), CLIENT_LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
    return Ended(process.returncode, out.decode(), err.decode())


async def run(*command: str, **environ: str) -> Ended:
    return await end_of(await start(*command, **environ))


@asynccontextmanager
async def open_door(*args: Any, listen: Listen | None = None, **room: Any) -> AsyncIterator[tuple[Room, str]]:
    """A room with a door, and the door's endpoint."""
    async with open_room(*args, **room) as opened:
        door = GrpcDoor(opened.request_queue, listen or Listen(), drain_s=0.0)
        await door.start()
        try:
            yield opened, door.endpoint
        finally:
            await door.drain()


@pytest.fixture(scope="module")
def node() -> tuple[str, str]:
    """The command that runs the Node client, its pinned packages installed beside it."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is None or npm is None:
        pytest.skip("no node command")
    lock, installed = NODE_CLIENT / "package-lock.json", NODE_CLIENT / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        command = [npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=NODE_CLIENT, check=True, timeout=100)
    return program, str(NODE_CLIENT / "generate.mjs")


def test_the_lock_names_no_registry() -> None:
    lock = (NODE_CLIENT / "package-lock.json").read_text()
    assert '"integrity"' in lock
    assert "resolved" not in lock
    assert "://registry" not in lock


async def test_node_streams_text(node: tuple[str, str], byte_level: TextTokenizer) -> None:
    request = GenerationRequest(byte_level.encode("the fox"), max_tokens=30)
    async with open_door(tokenizer=byte_level) as (_, endpoint):
        flags = ["--max-tokens", "30", "--temperature", "0", "--seed", "18446744073709551615"]
        ended = await run(*node, "--server", endpoint, *flags, "the fox")
    assert (ended.code, ended.err) == (0, "")
    text, _, statistics = ended.out.rpartition("\n\n")
    assert text == byte_level.decode(expected(request))
    assert statistics.startswith("30 tokens · ")
    assert "finished by length · seed 18446744073709551615" in statistics


async def test_node_paints_every_token_by_its_source(node: tuple[str, str]) -> None:
    async with open_door() as (room, endpoint):
        ended = await run(*node, "--server", endpoint, "--token-ids", "--max-tokens", "40", "5 17 3", FORCE_COLOR="1")
        assert room.verifier.sessions[0].spec.prompt_token_ids == (5, 17, 3)
    assert ended.code == 0
    shown = ended.out.rpartition("\n\n")[0]
    assert {"\x1b[32m", "\x1b[33m"} <= set(re.findall(r"\x1b\[3\dm", shown))
    plain = re.sub(r"\x1b\[\d+m", "", shown)
    assert tuple(map(int, plain.split())) == expected(GenerationRequest((5, 17, 3), max_tokens=40))


@pytest.mark.parametrize(
    ("flags", "limits", "told"),
    [
        (["--temperature", "101"], {}, "INVALID_ARGUMENT, reason INVALID_ARGUMENT, field temperature: "),
        ([], {"max_running": 1, "max_queued": 0}, "RESOURCE_EXHAUSTED, reason TOO_MANY_SESSIONS, retry in 1 s: "),
    ],
)
async def test_node_tells_what_is_wrong(
    node: tuple[str, str], flags: list[str], limits: dict[str, int], told: str
) -> None:
    async with (
        open_door(**limits) as (room, endpoint),
        room.request_queue.admitted(GenerationRequest((1,), max_tokens=9)),
    ):
        ended = await run(*node, "--server", endpoint, "--token-ids", *flags, "5 17 3")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.strip().startswith(told)


async def test_node_tells_an_error_after_its_tokens(node: tuple[str, str]) -> None:
    async with open_door(dying_after(3)) as (_, endpoint):
        ended = await run(*node, "--server", endpoint, "--token-ids", "5 17 3")
    assert ended.code == 1
    num_tokens = len(ended.out.split())
    assert num_tokens >= 3
    assert ended.err.strip().startswith("UNAVAILABLE, reason SERVICE_UNAVAILABLE, retry in 1 s: ")
    assert f"the last token sent has index {num_tokens - 1}" in ended.err


async def test_node_cancels_on_ctrl_c(node: tuple[str, str]) -> None:
    async with open_door(Hanging) as (room, endpoint):
        client = await start(*node, "--server", endpoint, "--token-ids", "5 17 3")
        assert client.stdout is not None
        await asyncio.wait_for(client.stdout.readexactly(1), CLIENT_LIMIT_S)
        client.send_signal(signal.SIGINT)
        assert (await end_of(client)).code == 130
        await room.freed()
        assert room.request_queue.num_inside == 0


@pytest.mark.parametrize(
    "flags", [["--max-tokens", "x", "p"], ["--nope", "p"], [], ["a", "b"], ["--tls-ca", "/x", "p"]]
)
async def test_node_refuses_a_wrong_command_line(node: tuple[str, str], flags: list[str]) -> None:
    ended = await run(*node, *flags)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("generate: ")


async def test_node_over_tls(node: tuple[str, str], tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command")
    certificates = Certificates(tmp_path, openssl)
    certificate, key = certificates.issue("server")
    own_certificate, own_key = certificates.issue("client")
    listen = Listen(tls=TlsSettings(certificate=certificate, key=key, client_ca=certificates.ca))
    async with open_door(listen=listen) as (_, endpoint):
        ask = [*node, "--server", endpoint, "--token-ids", "--max-tokens", "9", "5 17 3"]
        trusting = ["--tls-ca", str(certificates.ca), "--tls-server-name", "localhost"]
        mutual = ["--tls-certificate", str(own_certificate), "--tls-key", str(own_key)]
        assert await run(*ask, *trusting, *mutual) == Ended(0, ANY, "")
        refused = await run(*ask, *trusting)
    assert refused.code == 1
    assert refused.err.strip().startswith("UNAVAILABLE")


PYTHON_CLIENT = (sys.executable, str(ROOT / "clients" / "python" / "generate.py"))


async def test_python_streams_text(byte_level: TextTokenizer) -> None:
    request = GenerationRequest(byte_level.encode("the fox"), max_tokens=30)
    async with open_door(tokenizer=byte_level) as (_, endpoint):
        flags = ["--server", endpoint, "--max-tokens", "30"]
        ended = await run(*PYTHON_CLIENT, "the fox", *flags, PYTHONPATH=str(ROOT))
    assert (ended.code, ended.err) == (0, "")
    text, _, statistics = ended.out.rpartition("\n\n")
    assert text == byte_level.decode(expected(request))
    assert statistics.startswith("30 tokens, ")


async def test_python_tells_what_is_wrong(byte_level: TextTokenizer) -> None:
    async with open_door(tokenizer=byte_level) as (_, endpoint):
        ended = await run(*PYTHON_CLIENT, "the fox", "--server", endpoint, "--max-tokens", "0", PYTHONPATH=str(ROOT))
    assert ended.code == 1
    assert "INVALID_ARGUMENT: max_tokens: 0 is outside [1, " in ended.err
