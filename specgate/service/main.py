"""A service's life as a process: flags, load, listen, ready, drain."""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specgate.errors import InvalidArgument, SpecgateError
from specgate.rpc.server import Server, ServerOptions
from specgate.rpc.tls import TlsFiles
from specgate.service.config import ServiceConfig, parse_flags

AddServicer = Callable[[Any, Any], None]
"""Puts a servicer for a ServedModel into a server's handlers."""

CPU_PAGE_SIZE = 2048
"""One page holds most sequences whole on the CPU, so that attention reads a view and copies nothing."""
CUDA_PAGE_SIZE = 256


def main(role: str, service: str, add_servicer: AddServicer, argv: Sequence[str] | None = None) -> int:
    """Run one service to its end; return its exit code: 0 after a drain, 1 for a refusal, 2 for a bad flag."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = parse_flags(role, argv)
        _prepare_process(config)
        asyncio.run(_serve(role, service, add_servicer, config))
    except InvalidArgument as error:
        print(f"{role}-svc: {error}", file=sys.stderr)
        return 2
    except SpecgateError as error:
        print(f"{role}-svc: {error.reason}: {error}", file=sys.stderr)
        return 1
    return 0


def _prepare_process(config: ServiceConfig) -> None:
    """Pin and thread the process before torch starts its pools."""
    if config.exit_with_stdin:
        threading.Thread(target=_exit_with_stdin, name="parent-watch", daemon=True).start()
    if config.cpu is not None:
        cores = os.sched_getaffinity(0)
        if config.cpu not in cores:
            raise InvalidArgument("--cpu", f"{config.cpu} is not one of the cores {sorted(cores)} of this process")
        os.sched_setaffinity(0, {config.cpu})
    # Before there is anything to drain, a stop is just a stop.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if config.threads is not None:
        import torch

        torch.set_num_threads(config.threads)


def _exit_with_stdin() -> None:
    # By descriptor: a buffered reader is locked while it waits, and the interpreter cannot end around that.
    while os.read(0, 4096):
        pass
    os._exit(0)


async def _serve(role: str, service: str, add_servicer: AddServicer, config: ServiceConfig) -> None:
    """Listen while loading, so that health can tell; then serve until asked to stop."""
    server = Server(service, _server_options(config))
    await server.start()
    try:
        model = await asyncio.to_thread(_load, role, config)
    except BaseException:
        await server.drain()
        raise
    add_servicer(model, server.handlers)
    await server.set_ready(lambda: model.engine.heartbeat_age_s)
    _say({"event": "ready", "endpoint": server.endpoint, "role": role, "model": config.model})
    try:
        await server.run()
    finally:
        model.engine.stop()


def _server_options(config: ServiceConfig) -> ServerOptions:
    tls = None
    if config.tls_certificate is not None and config.tls_key is not None:
        client_ca = Path(config.tls_client_ca) if config.tls_client_ca else None
        tls = TlsFiles(Path(config.tls_certificate), Path(config.tls_key), client_ca)
    return ServerOptions(host=config.host, port=config.port, tls=tls, insecure=config.insecure, drain_s=config.drain_s)


def _load(role: str, config: ServiceConfig) -> Any:
    """Load the model, check it on the serving path, start its engine. Returns a ServedModel."""
    from specgate.runtime.engine import Engine
    from specgate.runtime.loading import load, pick_device, pick_dtype
    from specgate.runtime.self_check import prepare
    from specgate.service.model import ServedModel

    device, dtype = pick_device(config.device), pick_dtype(config.dtype)
    tell = _tell_json if config.json_events else _tell_human
    loaded = load(config.model, device, dtype, tell)
    largest = CPU_PAGE_SIZE if device.type == "cpu" else CUDA_PAGE_SIZE
    runner = prepare(loaded, config.kv_tokens, min(largest, loaded.context_length, config.kv_tokens), tell)
    engine = Engine(runner, on_failure=_die)
    engine.start()
    return ServedModel(role, loaded, engine, config.max_sessions)


def _die() -> None:
    """Leave at once: with the device or its thread lost nothing can be served, and a supervisor starts anew."""
    os._exit(70)


def _say(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


def _tell_json(stage: str, done: int, total: int) -> None:
    _say({"event": "loading", "stage": stage, "done": done, "total": total})


def _tell_human(stage: str, done: int, total: int) -> None:
    print(f"{stage}: {'done' if done == total else '...'}", file=sys.stderr, flush=True)
