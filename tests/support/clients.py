"""Other people's clients: each in an environment of its own that `scripts/test_clients` makes, run as a process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "tests" / "clients" / "node"
RUN_WITHIN_S = 600.0
MAX_TOLD = 300
NOBODY = "http://127.0.0.1:9"
# Loopback alone: what asks for anything else fails at once.
OFFLINE: Mapping[str, str] = {
    "HTTP_PROXY": NOBODY,
    "HTTPS_PROXY": NOBODY,
    "NO_PROXY": "127.0.0.1,localhost",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "PYTHONPATH": str(ROOT),
    "TOKENIZERS_PARALLELISM": "false",
}


class Outcome(NamedTuple):
    """What a program printed, and its exit code."""

    code: int
    output: str


@dataclass(frozen=True)
class Client:
    """One client.

    Args:
        package: what it is called where it comes from, PyPI or npm.
        environment: of `scripts/test_clients`; "" is our own, "node" npm's.
        program: of tests/clients that runs cases; "" where the client is a command.
        before: what it could do of its cases when it was first tried.
    """

    name: str
    package: str
    environment: str
    program: str = ""
    before: str = ""

    def command(self, *arguments: str) -> list[str]:
        """Return what runs its program, or a command of its environment."""
        if self.environment == "node":
            return ["node", str(NODE / f"{self.program}.mjs"), *arguments]
        python = self._python()
        if self.program:
            return [python, "-m", f"tests.clients.programs.{self.program}", *arguments]
        return [str(Path(python).with_name(arguments[0])), *arguments[1:]]

    @property
    def missing(self) -> str:
        """What has to be made first, nothing where all is there."""
        there = NODE / "node_modules" / self.package if self.environment == "node" else Path(self._python())
        return "" if there.exists() else f"{self.name} is not installed: run scripts/test_clients"

    def version(self) -> str:
        """Return which version is installed."""
        if self.environment == "node":
            text = (NODE / "node_modules" / self.package / "package.json").read_text("utf-8")
            return str(json.loads(text)["version"])
        asked = f"from importlib.metadata import version; print(version({self.package!r}))"
        return subprocess.run([self._python(), "-c", asked], check=True, capture_output=True, text=True).stdout.strip()

    def _python(self) -> str:
        return (
            str(ROOT / f".venv-clients-{self.environment}" / "bin" / "python") if self.environment else sys.executable
        )


@dataclass
class ClientRow:
    """What came of one client, over all tests that ran it."""

    client: Client
    ran: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    broke: list[str] = field(default_factory=list)

    def to_object(self) -> dict[str, Any]:
        """Return the row as the table and the file hold it."""
        return {
            "name": self.client.name,
            "version": self.client.version(),
            "before": self.client.before,
            "ran": ", ".join(dict.fromkeys(self.ran)),
            "held": "NO" if self.broke else "yes",
            "seen": "; ".join(dict.fromkeys(self.broke or self.seen)),
        }


class ClientTable:
    """The rows of one run, and where programs may leave files."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._rows: dict[str, ClientRow] = {}

    def row(self, client: Client) -> ClientRow:
        """Return the client's row, a new one where it has none."""
        return self._rows.setdefault(client.name, ClientRow(client))

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return [row.to_object() for row in self._rows.values()]

    def run(self, client: Client, *arguments: str, **environment: str) -> Outcome:
        """Run the client to its end. What it keeps goes to a folder of the tests' own."""
        home = self._home / client.name.replace("/", "-").replace(" ", "-")
        home.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            client.command(*arguments),
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), **OFFLINE, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=RUN_WITHIN_S,
        )
        return Outcome(done.returncode, done.stdout)

    def cases(self, client: Client, model: str, wanted: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
        """Return what each case brought, by base URL and case. ``wanted`` names the cases of each URL.

        Raises AssertionError where one failed, which the client's row tells.
        """
        row = self.row(client)
        arguments = [argument for url, names in wanted.items() for argument in (url, *names)]
        code, output = self.run(client, model, *arguments)
        told = {(one["url"], one["case"]): one for one in _objects(output) if "case" in one}
        for url, name in ((url, name) for url, names in wanted.items() for name in names):
            one = told.get((url, name), {"error": f"ended with {code}"})
            if not one.get("value", True):
                one = {"error": f"{one['value']!r} came, which is nothing"}
            print(f"{client.name}: {name}: {str(one.get('error', one.get('value')))[:MAX_TOLD]!r}", flush=True)
            row.ran.append(_words(name))
            if "error" in one:
                row.broke.append(f"{name}: {one['error']}"[:MAX_TOLD])
        assert row.broke == [], output
        return {url: {name: told[url, name]["value"] for name in names} for url, names in wanted.items()}


def _words(case: str) -> str:
    return case.removeprefix("wide_").replace("_", " ")


def _objects(output: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among the lines."""
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value
