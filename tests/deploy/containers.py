"""What runs in a container: its command line, parsed by the program that it names, and the files that it needs."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.api.settings.settings import Settings
from specgate.rpc.endpoint import check_exposure
from specgate.service.config import ServiceConfig, parse_flags
from tests.orchestrator.cli.test_serve_options import settings_of_flags

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
HEALTH = "specgate-health"
Values = dict[str, Any]


def documents(text: str) -> list[Values]:
    """Return the YAML documents of ``text``, without empty ones."""
    return [one for one in yaml.safe_load_all(text) if one]


def instructions(name: str) -> Iterator[str]:
    """Yield what stands behind each instruction ``name`` of the Dockerfile, continued lines in one."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if line.startswith(f"{name} "):
            yield line.removeprefix(f"{name} ")


def programs() -> set[str]:
    """Return the programs that the image has of ours."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    copied = {Path(line.split()[-1]).name for line in instructions("COPY") if "/bin/" in line}
    return {*scripts, *copied}


def service_of(command: Sequence[str]) -> ServiceConfig:
    """Return what ``drafter-svc`` or ``verifier-svc`` makes of its flags; it refuses what the program would refuse."""
    program, *flags = command
    config = parse_flags(program.removesuffix("-svc"), flags)
    check_exposure(config.host, has_tls=config.tls_certificate is not None, insecure=config.insecure)
    return config


def gateway_of(command: Sequence[str], files: Mapping[str, Path]) -> Settings:
    """Return the settings that ``orchestrator serve`` would start with.

    Args:
        files: which file stands where in the container; a KeyError where --config names another one.
    """
    program, serve, *flags = command
    assert (program, serve) == ("orchestrator", "serve")
    found: Settings = settings_of_flags(*(_placed(flag, files) for flag in flags))
    return found


def _placed(flag: str, files: Mapping[str, Path]) -> str:
    name, _, value = flag.partition("=")
    return f"--config={files[value]}" if name == "--config" else flag


def endpoint_asked(health: Sequence[str]) -> str:
    """Return HOST:PORT, or the URL, that a health check asks."""
    program, address, *flags = health
    assert program == HEALTH
    assert {flag.partition("=")[0] for flag in flags} <= {"--ca", "--certificate", "--key", "--name"}
    return address
