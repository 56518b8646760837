"""Which cards two_gpus.sh gives to whom: what it asks of Ray and `serve`, and what Ray then does with logical cards."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from orchestrator.api.settings.settings import DrafterSettings, Settings, settings_of
from tests.support.fake_services import free_port

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
PYTHON = shlex.quote(sys.executable)
BEGIN = "#!/usr/bin/env bash\n"
RAY = 'echo "$*" > "$ASKED_OF_RAY"\necho Ray runtime started\nexec sleep 60\n'
ON_THE_CPU = ("--set", "verifier.device=cpu", "--set", "drafter.device=cpu")


def with_stubs(folder: Path, **programs: str) -> dict[str, str]:
    """Return an environment in which these are the first programs on PATH. No token is written for it."""
    folder.mkdir()
    for name, text in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(BEGIN + text)
        program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "RAY_AUTH_TOKEN": "0123456789abcdef" * 2}


def lists_cards(count: int) -> str:
    return "".join(f"echo 'GPU {card}: a card'\n" for card in range(count))


def asked_by(tmp_path: Path, *flags: str, cards: int) -> tuple[list[str], Settings]:
    """Return what the script asks of Ray, and the settings that its flags come to, on a host with so many cards."""
    # `serve` prints its settings instead.
    serve = f'shift\nexec {PYTHON} -m orchestrator.cli config print "$@"\n'
    environ = with_stubs(tmp_path / "bin", nvidia_smi=lists_cards(cards), ray=RAY, orchestrator=serve)
    environ["ASKED_OF_RAY"] = str(tmp_path / "asked")
    # A copy takes the programs of PATH, where the script itself would take those of .venv.
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    script = tmp_path / "deploy" / "two_gpus.sh"
    done = subprocess.run([script, *flags], env=environ, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "asked").read_text().split(), settings_of(yaml.safe_load(done.stdout))


@pytest.mark.parametrize(
    ("flags", "cards", "num_gpus", "shares", "run_ahead"),
    [
        ((), "2", 1, (1, 1), 4),
        (("--one-card",), "1", 0.5, (0.75, 0.25), 0),
        (("--cpu", "--", "--set", "drafter.run_ahead=2"), "0", 0, (1, 1), 2),
    ],
)
def test_what_is_asked_of_ray_and_serve(
    flags: tuple[str, ...], cards: str, num_gpus: float, shares: tuple[float, float], run_ahead: int, tmp_path: Path
) -> None:
    asked, settings = asked_by(tmp_path, *flags, cards=int(cards))
    assert asked[asked.index("--num-gpus") + 1] == cards
    drafter = settings.drafter
    assert isinstance(drafter, DrafterSettings)
    assert [service.placement.num_gpus for service in (settings.verifier, drafter)] == [num_gpus, num_gpus]
    assert (settings.verifier.memory_share, drafter.memory_share) == shares
    assert drafter.run_ahead == run_ahead


@pytest.mark.parametrize(("nvidia_smi", "cards"), [("exit 127\n", 0), (lists_cards(1), 1)])
def test_a_host_with_too_few_cards_is_offered_less(nvidia_smi: str, cards: int, tmp_path: Path) -> None:
    environ = with_stubs(tmp_path / "bin", nvidia_smi=nvidia_smi, ray=RAY, orchestrator="")
    done = subprocess.run([DEPLOY / "two_gpus.sh"], env=environ, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"this host has {cards} NVIDIA cards and 2 are needed; --one-card takes one, --cpu" in done.stderr


@contextmanager
def running(environ: dict[str, str], *flags: str) -> Iterator[IO[str]]:
    """Run the script with models on the CPU; yield its standard output, and end it as an operator does."""
    command = [DEPLOY / "two_gpus.sh", *flags, "--", "--json-events", *ON_THE_CPU]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        try:
            yield script.stdout
        finally:
            script.send_signal(signal.SIGTERM)
            assert script.wait(timeout=90) == 128 + signal.SIGTERM


def cards_by_role(environ: dict[str, str]) -> dict[str, list[str]]:
    command = [sys.executable, "-m", "orchestrator.cli", "status", "--json"]
    shown = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    replicas: list[dict[str, Any]] = json.loads(shown.stdout)["replicas"]
    return {replica["role"]: replica["cards"] for replica in replicas}


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "cards", "distinct"), [((), 2, 2), (("--one-card",), 1, 1)])
def test_each_replica_sees_the_cards_that_it_was_given(
    flags: tuple[str, ...], cards: int, distinct: int, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    environ = with_stubs(tmp_path / "bin", nvidia_smi=lists_cards(cards))
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    ports = [free_port() for _ in range(3)]
    given = (
        flag for pair in zip(("--port", "--grpc-port", "--ray-port"), map(str, ports), strict=True) for flag in pair
    )
    with running(environ, *flags, *given) as events:
        assert any(json.loads(line)["event"] == "ready" for line in events)
        seen = cards_by_role({**environ, "RAY_ADDRESS": f"127.0.0.1:{ports[2]}"})
    assert [len(seen[role]) for role in ("verifier", "drafter", "gateway")] == [1, 1, 0]
    assert len({*seen["verifier"], *seen["drafter"]}) == distinct
