"""Whether a Ray head demands a token.

As a program, ``ADDRESS TIMEOUT_S`` with a token on standard input, it asks the head once without the token and once
with it, and prints both status codes. It is a process of its own because the caller may start a Ray afterwards, which
forks, and a fork beside gRPC's threads may hang.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc

from orchestrator.local.child import environment_of_child
from specgate.errors import ServiceUnavailable

METHOD = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
OK = grpc.StatusCode.OK.name
REFUSED = grpc.StatusCode.UNAUTHENTICATED.name
LATE = grpc.StatusCode.DEADLINE_EXCEEDED.name
GONE = grpc.StatusCode.UNAVAILABLE.name
START_S = 5.0
"""How long the program may take beside its two questions."""
TLS_VARIABLE = "RAY_USE_TLS"
TLS_FILES = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")


def wants_token(address: str, token: str | None, timeout_s: float) -> bool:
    """Return whether the Ray head at ``address`` demands a token, and accepts ours; False if it demands none.

    Raises:
        ServiceUnavailable: it does not answer within ``timeout_s``, is no Ray head, or asks for another token; or it
            cannot be asked.
    """
    _check_tls()
    without, with_token = _ask(address, token, timeout_s)
    if without == OK:
        return False
    if without != REFUSED:
        problems = {LATE: f"it does not answer within {timeout_s:g} s", GONE: "there is no connection to it"}
        raise ServiceUnavailable(problems.get(without, f"what answers there is no Ray head ({without})"))
    if token is None:
        raise ServiceUnavailable("it asks for a token, and there is none here: copy the head's ~/.ray/auth_token")
    if with_token != OK:
        raise ServiceUnavailable("it asks for another token than the one here: copy the head's ~/.ray/auth_token")
    return True


def _ask(address: str, token: str | None, timeout_s: float) -> tuple[str, str]:
    # -P: a file in the caller's folder must not replace a library of the process that gets the token.
    command = [sys.executable, "-P", "-m", __name__, address, str(timeout_s)]
    try:
        asked = subprocess.run(
            command,
            input=token or "",
            capture_output=True,
            text=True,
            timeout=timeout_s + START_S,
            check=False,
            env=environment_of_child(),
        )
    except subprocess.TimeoutExpired:
        return LATE, LATE
    if asked.returncode:
        *_, why = asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"]
        raise ServiceUnavailable(f"the process that asks it has failed: {why}")
    without, _, with_token = asked.stdout.partition("\n")
    return without, with_token.strip()


def _check_tls() -> None:
    for name in TLS_FILES if _uses_tls() else ():
        if not (file := os.environ.get(name)):
            raise ServiceUnavailable(f"with {TLS_VARIABLE} {name} must name a file, and is not set")
        if not os.access(file, os.R_OK):
            raise ServiceUnavailable(f"{name} names {file}, which cannot be read")


def _uses_tls() -> bool:
    return os.environ.get(TLS_VARIABLE, "0").lower() in ("1", "true")


def _main(address: str, timeout_s: float) -> None:
    token = sys.stdin.read()
    with _channel(address) as channel:
        ask: Any = channel.unary_unary(METHOD)
        code = _code(ask, (), timeout_s)
        print(code, flush=True)
        # Only a head that demands a token gets ours.
        if code == REFUSED and token:
            print(_code(ask, (("authorization", f"Bearer {token}"),), timeout_s))


def _channel(address: str) -> grpc.Channel:
    options = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1))
    if not _uses_tls():
        return grpc.insecure_channel(address, options)
    ca, key, certificate = (Path(os.environ[name]).read_bytes() for name in TLS_FILES)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate), options)


def _code(ask: Any, metadata: tuple[tuple[str, str], ...], timeout_s: float) -> str:
    try:
        ask(b"", timeout=timeout_s, metadata=metadata)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code.name
    return OK


if __name__ == "__main__":
    _main(sys.argv[1], float(sys.argv[2]))
