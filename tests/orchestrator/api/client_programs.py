"""Programs of clients/, run as their readers would."""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import program

ROOT = Path(__file__).resolve().parents[3]
NODE_CLIENT = ROOT / "clients" / "node"
CPP_BUILD = ROOT / "clients" / "cpp" / "build"
CLIENT_LIMIT_S = 60.0
Command = tuple[str, ...]
Ended = tuple[int | None, str, str]
"""Exit code, standard output and standard error."""


async def start(*command: str, stdout: Any = asyncio.subprocess.PIPE, **environ: str) -> asyncio.subprocess.Process:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdout=stdout, stderr=pipe, cwd=ROOT, env=environ)


async def end_of(process: asyncio.subprocess.Process) -> Ended:
    try:
        out, err = await asyncio.wait_for(process.communicate(), CLIENT_LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, (out or b"").decode(), err.decode()


async def run(*command: str, stdout: Any = asyncio.subprocess.PIPE, **environ: str) -> Ended:
    return await end_of(await start(*command, stdout=stdout, **environ))


def node_client() -> Command:
    """Return the command of the Node client, its pinned packages installed beside it."""
    node, npm = program("node", "nodejs"), program("npm")
    lock, installed = NODE_CLIENT / "package-lock.json", NODE_CLIENT / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        command = [npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=NODE_CLIENT, check=True)
    return node, str(NODE_CLIENT / "generate.mjs")


def cpp_client() -> Command:
    """Return the command of the C++ client, built again where a source or a proto has changed."""
    if not (CPP_BUILD / "Makefile").exists():
        pytest.skip("no clients/cpp/build: scripts/cpp_client makes it, or says what it needs")
    subprocess.run(["cmake", "--build", str(CPP_BUILD)], check=True, stdout=subprocess.DEVNULL)
    return (str(CPP_BUILD / "generate"),)
