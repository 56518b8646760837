"""The programs in clients/ as their readers would run them, against a real door over the fake model."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.api.settings.listen import Listen, TlsSettings
from orchestrator.api.settings.settings import Defaults
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.gates import Gate
from tests.orchestrator.api.queues import Hanging, dying_after, expected, open_api
from tests.specgate.rpc.certificates import Certificates

ROOT = Path(__file__).resolve().parents[3]
NODE_CLIENT = ROOT / "clients" / "node"
PYTHON_CLIENT = (sys.executable, str(ROOT / "clients" / "python" / "generate.py"))
CLIENT_LIMIT_S = 60.0
Ended = tuple[int | None, str, str]
"""Exit code, standard output and standard error."""


async def start(*command: str, **environ: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, cwd=ROOT, env=environ)


async def end_of(process: asyncio.subprocess.Process) -> Ended:
    try:
        out, err = await asyncio.wait_for(process.communicate(), CLIENT_LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, out.decode(), err.decode()


async def run(*command: str, **environ: str) -> Ended:
    return await end_of(await start(*command, **environ))


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
    assert not re.search(r"resolved|://registry", lock)


async def test_node_streams_text(node: tuple[str, str], byte_level: TextTokenizer) -> None:
    async with open_api(tokenizer=byte_level) as (_, door):
        flags = ["--max-tokens", "30", "--temperature", "0", "--seed", "18446744073709551615"]
        code, out, err = await run(*node, "--server", door.endpoint, *flags, "the fox")
    assert (code, err) == (0, "")
    text, _, statistics = out.rpartition("\n\n")
    assert text == byte_level.decode(expected(GenerationRequest(byte_level.encode("the fox"), max_tokens=30)))
    assert statistics.startswith("30 tokens · ")
    assert "finished by length · seed 18446744073709551615" in statistics


async def test_node_paints_every_token_by_its_source(node: tuple[str, str]) -> None:
    async with open_api() as (room, door):
        # Left to auto, a draft that is as slow as a fake's would soon not be asked.
        room.request_queue.defaults = Defaults(gate=Gate.NONE)
        ask = [*node, "--server", door.endpoint, "--token-ids", "--max-tokens", "40", "5 17 3"]
        code, out, _ = await run(*ask, FORCE_COLOR="1")
    assert code == 0
    shown = out.rpartition("\n\n")[0]
    assert {"\x1b[32m", "\x1b[33m"} <= set(re.findall(r"\x1b\[3\dm", shown))
    plain = re.sub(r"\x1b\[\d+m", "", shown)
    assert tuple(map(int, plain.split())) == expected(GenerationRequest((5, 17, 3), max_tokens=40))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--temperature", "101"], "INVALID_ARGUMENT, reason INVALID_ARGUMENT, field temperature: "),
        ([], "RESOURCE_EXHAUSTED, reason TOO_MANY_SESSIONS, retry in 1 s: "),
    ],
)
async def test_node_tells_what_is_wrong(node: tuple[str, str], flags: list[str], told: str) -> None:
    async with (
        open_api(max_running=1, max_queued=len(flags)) as (room, door),
        room.request_queue.admitted(GenerationRequest((1,), max_tokens=9)),
    ):
        code, out, err = await run(*node, "--server", door.endpoint, "--token-ids", *flags, "5 17 3")
    assert (code, out) == (1, "")
    assert err.strip().startswith(told)


async def test_node_tells_an_error_after_its_tokens(node: tuple[str, str]) -> None:
    async with open_api(dying_after(3)) as (_, door):
        code, out, err = await run(*node, "--server", door.endpoint, "--token-ids", "5 17 3")
    assert code == 1
    assert len(out.split()) >= 3
    assert err.strip().startswith("UNAVAILABLE, reason SERVICE_UNAVAILABLE, retry in 1 s: ")
    assert f"the last token sent has index {len(out.split()) - 1}" in err


async def test_node_cancels_on_ctrl_c(node: tuple[str, str]) -> None:
    async with open_api(Hanging) as (room, door):
        client = await start(*node, "--server", door.endpoint, "--token-ids", "5 17 3")
        assert client.stdout is not None
        await asyncio.wait_for(client.stdout.readexactly(1), CLIENT_LIMIT_S)
        client.send_signal(signal.SIGINT)
        assert (await end_of(client))[0] == 130
        await room.freed()
        assert room.request_queue.num_inside == 0


@pytest.mark.parametrize("flags", ["--max-tokens x p", "--nope p", "", "a b", "--tls-ca /x p"])
async def test_node_refuses_a_wrong_command_line(node: tuple[str, str], flags: str) -> None:
    code, out, err = await run(*node, *flags.split())
    assert (code, out) == (2, "")
    assert err.startswith("generate: ")


async def test_node_over_tls(node: tuple[str, str], certificates: Certificates) -> None:
    certificate, key = certificates.issue("server")
    own_certificate, own_key = certificates.issue("client")
    listen = Listen(tls=TlsSettings(certificate=certificate, key=key, client_ca=certificates.ca))
    async with open_api(listen=listen) as (_, door):
        ask = [*node, "--server", door.endpoint, "--token-ids", "--max-tokens", "9", "5 17 3"]
        trusting = ["--tls-ca", str(certificates.ca), "--tls-server-name", "localhost"]
        mutual = ["--tls-certificate", str(own_certificate), "--tls-key", str(own_key)]
        code, _, err = await run(*ask, *trusting, *mutual)
        assert (code, err) == (0, "")
        code, _, err = await run(*ask, *trusting)
        assert code == 1
        assert err.strip().startswith("UNAVAILABLE")


async def test_python_streams_text_and_tells_what_is_wrong(byte_level: TextTokenizer) -> None:
    async with open_api(tokenizer=byte_level) as (_, door):
        ask = [*PYTHON_CLIENT, "the fox", "--server", door.endpoint, "--max-tokens"]
        streamed, refused = await run(*ask, "30"), await run(*ask, "0")
    text, _, statistics = streamed[1].rpartition("\n\n")
    assert (streamed[0], streamed[2]) == (0, "")
    assert text == byte_level.decode(expected(GenerationRequest(byte_level.encode("the fox"), max_tokens=30)))
    assert statistics.startswith("30 tokens, ")
    assert refused[0] == 1
    assert "INVALID_ARGUMENT: max_tokens: 0 is outside [1, " in refused[2]
