"""Where a measurement comes from: machine, versions, commit, command and date, as every results file has them."""

import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import specgate
from orchestrator.local.cores import num_usable_cores
from specgate.version import answer_of, commit

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "grpcio", "protobuf", "triton", "ray")


def provenance(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a JSON object that says what measured, on what, and when, without torch and without the network.

    Args:
        argv: the command line; our own process's where absent. Home and working folder are shortened in it.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(sys.argv if argv is None else argv),
        "commit": commit(),
        "specgate": specgate.__version__,
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpu": _cpu(),
            "cores": num_usable_cores(),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
            "gpus": _gpus(),
        },
    }


def sealed(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file of results holds: the results, and a seal that fits no other ones.

    It guards against a figure that somebody mends by hand, not against forgery.
    """
    return {**results, "seal": seal_of(results)}


def seal_of(results: Mapping[str, Any]) -> str:
    """Return the SHA-256 of results, without the seal that they may have."""
    content = {key: value for key, value in results.items() if key != "seal"}
    # As it is read again: keys that are numbers are written as text, and have another order so.
    written = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()


def _command(argv: Sequence[str]) -> str:
    program, *arguments = argv
    return " ".join([Path(program).name, *(_shortened(argument) for argument in arguments)])


def _shortened(argument: str) -> str:
    """Return an argument as a shell takes it, with the working folder as ``.`` and the home as ``~``."""
    flag, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    for folder, short in _folders():
        if value == folder or value.startswith(folder + "/"):
            rest = value.removeprefix(folder)
            # A shell reads ~ for the home only where it is not quoted.
            return f"{flag}{equals}{short}{shlex.quote(rest) if rest else ''}"
    return shlex.quote(argument)


def _folders() -> Iterator[tuple[str, str]]:
    """Yield folders whose names may identify a person, and what stands for them; never the root folder."""
    if (here := Path.cwd()) != Path(here.anchor):
        yield str(here), "."
    # Somebody without an entry among the users has no home.
    with suppress(RuntimeError):
        if (home := Path.home()) != Path(home.anchor):
            yield str(home), "~"


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _gpus() -> list[str]:
    """Return each card's name and driver."""
    cards = answer_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return cards.splitlines() if cards else []
