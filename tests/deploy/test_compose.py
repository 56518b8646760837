"""deploy/docker/compose.yaml and what is put over it: valid, its commands are taken, and all names agree."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.composition import FILES, FOLDER, mounted, services
from tests.deploy.containers import DEPLOY, DOCKERFILE, endpoint_asked, gateway_of, programs, service_of
from tests.support.programs import program

ROLES = ("verifier", "drafter")
OVERRIDES = [(), FILES[1:2], FILES[2:], FILES[1:]]

with_overrides = pytest.mark.parametrize("overrides", OVERRIDES, ids=lambda names: "+".join(names) or "alone")


def configured(folder: Path, *names: str) -> "subprocess.CompletedProcess[str]":
    command = [program("docker-compose"), *(f"--file={folder / name}" for name in names), "config"]
    # Without the variables of whoever runs the tests, which the files read.
    environment = {"PATH": os.environ["PATH"]}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def volume(read: str | dict[str, str]) -> tuple[str, Path]:
    """Return where a volume stands in the container, and what it is; compose 1 prints it short, compose 2 long."""
    if isinstance(read, str):
        source, place, *_ = read.split(":")
        return place, Path(source)
    return read["target"], Path(read["source"])


@with_overrides
def test_compose_takes_the_files_and_reads_them_as_we_do(overrides: tuple[str, ...]) -> None:
    done = configured(FOLDER, "compose.yaml", *overrides)
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    ours = services(*overrides)
    assert {name: one["command"] for name, one in read.items()} == {name: one["command"] for name, one in ours.items()}
    for name, service in ours.items():
        assert dict(map(volume, read[name]["volumes"])).items() >= mounted(service).items()


@with_overrides
def test_the_gateway_asks_the_services_where_they_listen(overrides: tuple[str, ...]) -> None:
    found = services(*overrides)
    settings = gateway_of(found["gateway"]["command"], mounted(found["gateway"]))
    assert settings.drafter is not None
    configs = {role: service_of(found[role]["command"]) for role in ROLES}
    for role, named in (("verifier", settings.verifier), ("drafter", settings.drafter)):
        assert named.endpoints == (f"{role}:{configs[role].port}",)
        assert configs[role].host == configs[role].metrics_host == "0.0.0.0"
    # Who knows the target's tokenizer is the gateway.
    assert settings.verifier.model == configs["verifier"].model


@with_overrides
def test_either_all_of_it_speaks_tls_or_it_is_open_about_plain_text(overrides: tuple[str, ...]) -> None:
    found, over_tls = services(*overrides), "compose.tls.yaml" in overrides
    gateway = gateway_of(found["gateway"]["command"], mounted(found["gateway"]))
    assert (gateway.services_tls is not None) == over_tls
    assert all((door.tls is not None) == over_tls for door in (gateway.gateway.http, gateway.gateway.grpc))
    for role in ROLES:
        config = service_of(found[role]["command"])
        assert (config.tls_client_ca is not None) == over_tls
        # With TLS it is for the metrics.
        assert config.insecure


@with_overrides
def test_only_the_doors_are_published_and_only_on_this_machine(overrides: tuple[str, ...]) -> None:
    found = services(*overrides)
    settings = gateway_of(found["gateway"]["command"], mounted(found["gateway"])).gateway
    published = {name: service["ports"] for name, service in found.items() if "ports" in service}
    doors = (settings.http, settings.grpc)
    assert published == {"gateway": [f"127.0.0.1:{door.port}:{door.port}" for door in doors]}
    assert all(door.host == "0.0.0.0" for door in (*doors, settings.operations))


@with_overrides
def test_health_checks_ask_what_listens(overrides: tuple[str, ...]) -> None:
    found = services(*overrides)
    operations = gateway_of(found["gateway"]["command"], mounted(found["gateway"])).gateway.operations
    assert operations is not None
    asked = {name: endpoint_asked(found[name]["healthcheck"]["test"][1:]) for name in (*ROLES, "gateway")}
    ports = {role: service_of(found[role]["command"]).port for role in ROLES}
    assert asked == {
        "gateway": f"http://127.0.0.1:{operations.port}/readyz",
        **{role: f"127.0.0.1:{port}" for role, port in ports.items()},
    }
    assert {one["command"][0] for name, one in found.items() if name != "prometheus"} <= programs()


def test_our_image_is_built_and_not_looked_for_in_a_registry() -> None:
    ours = [one for name, one in services().items() if name != "prometheus"]
    assert {(FOLDER / one["build"]["context"] / one["build"]["dockerfile"]).resolve() for one in ours} == {DOCKERFILE}
    assert len({one["image"] for one in ours}) == 1


def test_prometheus_scrapes_what_is_there_under_the_roles_of_our_alerts() -> None:
    found = services()
    (job,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    scraped = {one["labels"]["role"]: one["targets"] for one in job["static_configs"]}
    gateway = gateway_of(found["gateway"]["command"], mounted(found["gateway"])).gateway
    operations = gateway.operations
    assert operations is not None
    assert gateway.http.hosts == ("gateway",)
    expected = {role: [f"{role}:{service_of(found[role]['command']).metrics_port}"] for role in ROLES}
    assert scraped == {"gateway": [f"gateway:{operations.port}"], **expected}


def test_promtool_takes_the_files_that_are_mounted(tmp_path: Path) -> None:
    files = mounted(services()["prometheus"])
    assert {file.parent for file in files.values()} == {FOLDER, DEPLOY / "observability"}
    for place, file in files.items():
        shutil.copy(file, tmp_path / Path(place).name)
    command = [program("promtool", "prometheus"), "check", "config", tmp_path / "prometheus.yml"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout


def test_make_tls_makes_every_file_that_is_named(tmp_path: Path) -> None:
    program("openssl")
    subprocess.run([FOLDER / "make_tls.sh", tmp_path], check=True, capture_output=True)
    text = "".join((FOLDER / name).read_text() for name in ("compose.tls.yaml", "gateway.tls.yaml"))
    named = {word.strip("},").rpartition("/")[2] for word in text.split() if "/etc/specgate/tls/" in word}
    made = {file.name for file in tmp_path.iterdir()}
    assert named
    assert named <= made
    assert (tmp_path / "ca.key").stat().st_mode & 0o077 == 0
