"""Real services for tests: one process each, ended by its own handle."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import specgate
from tests.support.patience import PATIENCE_S

PAIR = Path(specgate.__file__).parent / "demo_pair"
HELD_OUT_PROMPTS = json.loads((Path(__file__).parents[1] / "data" / "held_out_prompts.json").read_text())
"""The first tokens' worth of text of 50 places in modules that the bundled pair never saw."""


def of_short_context(folder: Path, num_tokens: int = 64) -> Path:
    """Write the bundled draft to ``folder`` as a model that holds so many tokens, and return where it is."""
    draft = copytree(PAIR / "draft", folder / "draft")
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"max_position_embeddings": num_tokens}))
    return draft


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


class Service:
    """``python -m drafter_svc`` or ``verifier_svc`` on a port of its own, which it keeps over restarts.

    Args:
        model: None is for a drafter that needs none.
        prefix: of the command, such as what runs it in another network.
    """

    def __init__(
        self, role: str, model: Path | None, *flags: str, module: Sequence[str] = (), prefix: Sequence[str] = ()
    ) -> None:
        self._command = [*prefix, sys.executable, "-m", *(module or (f"{role}_svc",)), "--threads", "1"]
        self._command += ["--model", str(model)] if model is not None else []
        self._command += ["--json-events", "--exit-with-stdin", "--drain-s", "1", *flags]
        self._process: subprocess.Popen[str] | None = None
        self.endpoint = "127.0.0.1:0"

    def start(self) -> "Service":
        """Return once it serves."""
        port = self.endpoint.rpartition(":")[2]
        self._process = subprocess.Popen(
            [*self._command, "--port", port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for line in self._process.stdout or ():
            event = json.loads(line)
            if event["event"] == "ready":
                self.endpoint = event["endpoint"]
                return self
        raise RuntimeError(f"{self._command} ended with {self._process.wait()} before it served")

    @property
    def pid(self) -> int:
        """Of its process; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        if self._process is None:
            return 0
        code = self._process.wait(timeout=PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None
        return code


@contextlib.contextmanager
def copying_and_skipping(
    folder: Path, target: Path, skip: dict[str, Any], *flags: str, ahead: int = 0
) -> Iterator[dict[str, Service]]:
    """Run a drafter of each method that needs no draft model, by the method's name.

    Args:
        skip: what the one that leaves layers out leaves out, written to ``folder``.
        ahead: rows that it may guess with; 0 is the default of the command.
    """
    file = folder / "skip.json"
    file.write_text(json.dumps(skip))
    more = ("--run-ahead", str(ahead)) if ahead else ()
    with (
        running("drafter", None, "--method", "suffix", *flags) as copying,
        running("drafter", target, "--method", "layer-skip", "--skip", str(file), *more, *flags) as skipping,
    ):
        yield {"suffix": copying, "layer-skip": skipping}


@contextlib.contextmanager
def running(
    role: str, model: Path | None, *flags: str, module: Sequence[str] = (), prefix: Sequence[str] = ()
) -> Iterator[Service]:
    """Run a service, or ``module`` in its place, while the context lasts."""
    service = Service(role, model, *flags, module=module, prefix=prefix).start()
    try:
        yield service
    finally:
        service.stop()
