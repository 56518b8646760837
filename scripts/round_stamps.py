"""When the steps of a round begin and end: functions of ours, wrapped from outside before they are used.

    python -m round_stamps drafter --model ...    # a service that leaves its stamps in the folder $ROUND_STAMPS

All processes of a machine read one clock, so their stamps fit together.
"""

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

FOLDER = "ROUND_STAMPS"
ON_CARD = "on the card"
Stamp = tuple[int, str, int]
"""When it began, in nanoseconds, what it was, and when it ended."""
_MARKS = (
    ("orchestrator.decode.session", "Session.commit", "committed"),
    ("orchestrator.services.links", "draft_round_to_pb", "drafter asked"),
    ("drafter_svc.rounds", "DraftRounds.draft", "drafter has it"),
    ("drafter_svc.service", "draft_response_to_pb", "drafter answers"),
    ("orchestrator.services.drafter_opener", "check_proposal", "proposal is there"),
    ("orchestrator.services.links", "verify_round_to_pb", "verifier asked"),
    ("verifier_svc.rounds", "VerifyRounds.begin", "verifier has it"),
    ("verifier_svc.service", "verdict_to_pb", "verifier answers"),
    ("orchestrator.services.failover", "check_verdict", "verdict is there"),
)
_MESSAGES = (
    ("orchestrator.services.links", "draft_round_to_pb"),
    ("drafter_svc.service", "draft_round_from_pb"),
    ("drafter_svc.service", "draft_response_to_pb"),
    ("orchestrator.services.links", "draft_response_from_pb"),
    ("orchestrator.services.links", "verify_round_to_pb"),
    ("verifier_svc.service", "verify_round_from_pb"),
    ("verifier_svc.service", "verdict_to_pb"),
    ("orchestrator.services.links", "verdict_from_pb"),
)
_CHOICES = (
    ("specgate.runtime.engine.engine", "answers"),
    ("specgate.runtime.engine.chain", "chosen_on_device"),
)
_WIRE = {"drafter": ("DraftRequest", "DraftResponse"), "verifier": ("VerifyRequest", "VerifyResponse")}
_stamps: list[Stamp] = []
_on_card: list[tuple[int, Any, Any]] = []


def install() -> None:
    """Wrap what this process will run of either service and of the decode loop."""
    for module, name in _MESSAGES:
        _replace(module, name, partial(_timed, "message"))
    for module, name, mark in _MARKS:
        _replace(module, name, partial(_marked, mark))
    for module, name in _CHOICES:
        _replace(module, name, partial(_timed, "choose"))
    _replace("drafter_svc.drafter", "DraftSession.draft", _drafting)
    _replace("verifier_svc.verifier", "VerifySession.verify", _verifying)
    for name in ("forward", "draft"):
        _replace("specgate.runtime.cpu.native_calls", name, partial(_timed, "forward"))
    _replace("specgate.service.loading", "build_runner", _stamping)
    torch.Tensor.tolist = _timed("read", torch.Tensor.tolist)  # type: ignore[method-assign]
    for role, names in _WIRE.items():
        _wrap_wire(role, names)


def _stamping(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what a model's runner does, too."""

    def call(*args: Any) -> Any:
        runner = build(*args)
        for name in ("inputs", "pack"):
            if hasattr(runner.kernel, name):
                setattr(runner.kernel, name, _timed("pack", getattr(runner.kernel, name)))
        if runner.kernel.name != "decoder" and runner.device.type == "cpu":
            runner.call = _timed("forward", runner.call)
        runner.draft = _timed("launch", runner.draft)
        forward = _timed("launch", runner.forward)
        runner.forward = _between_events(forward) if runner.device.type == "cuda" else forward
        return runner

    return call


def taken() -> list[Stamp]:
    """Return the stamps of this process so far."""
    if _on_card:
        torch.cuda.synchronize()
    return _stamps + [(at, ON_CARD, at + int(begin.elapsed_time(end) * 1e6)) for at, begin, end in _on_card]


def _stamp(name: str) -> None:
    now = time.perf_counter_ns()
    _stamps.append((now, name, now))


def _replace(module: str, name: str, wrap: Callable[[Any], Any]) -> None:
    """Put a wrapper in the place of a function, or of a class's method."""
    *owners, name = name.split(".")
    owner: Any = importlib.import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    setattr(owner, name, wrap(getattr(owner, name)))


def _marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        _stamp(name)
        return function(*args, **named)

    return call


def _timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        start = time.perf_counter_ns()
        result = function(*args, **named)
        _stamps.append((start, name, time.perf_counter_ns()))
        return result

    return call


def _drafting(draft: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Iterator[Any]:
        _stamp("draft begins")
        result = yield from draft(*args)
        _stamp("draft ends")
        return result

    return call


def _verifying(verify: Callable[..., Any]) -> Callable[..., Any]:
    def call(session: Any, request: Any, emit: Callable[[Any], None]) -> Iterator[Any]:
        _stamp("verify begins")
        yield from verify(session, request, _marked("verify ends", emit))

    return call


def _between_events(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        at = time.perf_counter_ns()
        begin.record()
        result = forward(*args, **named)
        end.record()
        _on_card.append((at, begin, end))
        return result

    return call


def _wrap_wire(role: str, names: tuple[str, ...]) -> None:
    """Have the generated code write and parse a stream's messages by wrapped functions."""
    stubs = importlib.import_module(f"specgate.v1.{role}_service_pb2_grpc")
    messages = f"specgate_dot_v1_dot_{role}__service__pb2"
    wrapped = {}
    for name in names:
        message = getattr(getattr(stubs, messages), name)
        wrapped[name] = SimpleNamespace(
            SerializeToString=_timed("message", message.SerializeToString),
            FromString=_timed("message", message.FromString),
        )
    setattr(stubs, messages, SimpleNamespace(**wrapped))


def main() -> int:
    """Serve until the standard input ends, and leave the stamps behind."""
    from specgate.service import main as process

    def leave_stamps() -> None:
        while os.read(0, 4096):
            pass
        Path(os.environ[FOLDER], f"{os.getpid()}.json").write_text(json.dumps(taken()), "utf-8")
        os._exit(0)

    role = sys.argv.pop(1)
    install()
    process._exit_with_stdin = leave_stamps
    code = process.main(role)
    if not code:
        threading.Event().wait()
    return code


if __name__ == "__main__":
    sys.exit(main())
