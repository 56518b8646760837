"""``orchestrator serve``: the whole system on Ray, configured by one file, until Ctrl-C."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.api.settings.settings import Settings, load_settings
from orchestrator.cli.serve_options import ServeOptions
from orchestrator.local.loading_bars import loading_bars
from orchestrator.local.pair_settings import check_model
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.render import warner
from specgate.errors import ServiceUnavailable
from specgate.logs import LogLevel, configure_logs

if TYPE_CHECKING:
    from orchestrator.cluster.deploy import GatewayEndpoints

MODE = "RAY_AUTH_MODE"
"""Ray's variable; whoever joins or starts a Ray sets it to what that Ray asks for."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_SIGNAL_S = 0.5
Stages = dict[str, tuple[str, int, int]]


@takes_groups
def serve(options: ServeOptions) -> None:
    """Serve the pair on Ray, with an OpenAI-compatible HTTP API and a gRPC API, until Ctrl-C."""
    start_s = time.monotonic()
    settings = load_settings(options.config, options.overrides(), options.service.given_to)
    if settings.logs.as_json:
        configure_logs(f"serve-{os.getpid()}", as_json=True, level=LogLevel.WARNING)
    if find_spec("ray") is None:
        raise ServiceUnavailable("serving needs Ray: pip install 'specgate[ray]'")
    from orchestrator.app import build
    from orchestrator.cluster.cluster import on_cluster
    from orchestrator.cluster.deploy import ServedApplication, with_ports

    log = Console(stderr=True)
    warn = _warning_event if options.json_events else warner(log)
    with on_cluster(warn, insecure=options.insecure) as ours, _stop_asked() as stop:
        if ours:
            _check_models(settings)
        settings = with_ports(settings)
        served = ServedApplication(settings, build(settings.model_dump(mode="json")))
        try:
            with _shown(log, stop, as_json=options.json_events) as show:
                apis = served.start(show)
            _tell_open_ports(log, as_json=options.json_events)
            _tell(settings, apis, time.monotonic() - start_s, as_json=options.json_events)
            served.wait(stop)
            log.print(f"draining: running requests get {settings.drain_s:g} s", highlight=False)
        finally:
            served.stop()


def _check_models(settings: Settings) -> None:
    """Raise InvalidArgument for a missing folder, unless a node of another cluster may have it."""
    check_model("verifier.model", settings.verifier.model)
    if settings.drafter is not None:
        check_model("drafter.model", settings.drafter.model)


@contextmanager
def _stop_asked() -> Iterator[threading.Event]:
    """Yield what the first SIGINT or SIGTERM sets. One that comes later ends the process.

    A terminal, or ``timeout``, may send the first one twice: to the process, and to its group.
    """
    asked, asked_at_s = threading.Event(), 0.0

    def on_signal(number: int, _: object) -> None:
        nonlocal asked_at_s
        if not asked.is_set():
            asked_at_s = time.monotonic()
            asked.set()
        elif time.monotonic() - asked_at_s > SAME_SIGNAL_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, on_signal)
    yield asked


@contextmanager
def _shown(log: Console, stop: threading.Event, *, as_json: bool) -> Iterator[Callable[[Stages], None]]:
    """Yield what shows the stages of all replicas: bars and notices, or a JSON line for each new one.

    It raises KeyboardInterrupt once ``stop`` is set: the user does not wait any longer.
    """
    shown: Stages = {}
    with loading_bars(log, ()) as show_bar:

        def show(stages: Stages) -> None:
            for replica, stage in stages.items() - shown.items():
                is_notice = stage[-1] == 0
                if as_json:
                    _say(_event_of(replica, *stage))
                elif is_notice:
                    log.print(f"{replica}: {stage[0]}", style="yellow", markup=False, soft_wrap=True)
                else:
                    show_bar(replica, *stage)
            shown.update(stages)
            if stop.is_set():
                raise KeyboardInterrupt

        yield show


def _tell_open_ports(log: Console, *, as_json: bool) -> None:
    """Print the addresses beyond loopback of Ray and of specgate."""
    from orchestrator.cluster.sockets import lines_of, open_ports

    ports = open_ports()
    if as_json:
        _say({"event": "listening", "ports": [one._asdict() for one in ports]})
    elif ports:
        log.print("on this machine these listen beyond loopback:", highlight=False)
        log.print("\n".join(f"  {line}" for line in lines_of(ports)), highlight=False, markup=False, soft_wrap=True)


def _tell(settings: Settings, apis: "GatewayEndpoints", seconds: float, *, as_json: bool) -> None:
    if as_json:
        _say({"event": "ready", "http": apis.http[0], "grpc": apis.grpc[0], "seconds": round(seconds, 3)})
        return
    body = json.dumps({"model": settings.model_name, "prompt": "def main():", "max_tokens": 32, "stream": True})
    print(f"ready after {seconds:.1f} s")
    print(f"  HTTP  {', '.join(f'{url}/v1' for url in apis.http)}")
    print(f"  gRPC  {', '.join(apis.grpc)}")
    if settings.gateway.page:
        print(f"  page  {apis.http[0]}/")
    print(f"  curl -N {apis.http[0]}/v1/completions -H 'content-type: application/json' -d '{body}'")
    hint = "; Ray's own commands beside it need RAY_AUTH_MODE=token" if os.environ.get(MODE) == "token" else ""
    print(f"  orchestrator status shows how it is{hint}")
    print("Ctrl-C drains and leaves.", flush=True)


def _warning_event(text: str) -> None:
    _say({"event": "warning", "text": text})


def _event_of(replica: str, stage: str, done: int, total: int) -> dict[str, object]:
    if not total:
        return {"event": "notice", "replica": replica, "text": stage}
    return {"event": "loading", "replica": replica, "stage": stage, "done": done, "total": total}


def _say(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)
