"""Which Ray cluster is joined, how soon one that does not answer is given up, and who may say where one is."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("ray")

from orchestrator.cluster.address import LOCAL, asked_for, left_here, read_address
from orchestrator.cluster.cluster import on_cluster, visiting_cluster
from orchestrator.cluster.find import Head, find_head, first_that_answers
from orchestrator.cluster.head import TLS_FILES, wants_token
from specgate.errors import InvalidArgument, ServiceUnavailable
from tests.support.fake_services import serving, silent, unused_endpoint
from tests.support.ray_cluster import RAY_MARKS, Cluster

pytestmark = RAY_MARKS

ADDRESS = "10.0.0.7:6379"
LONG_S = 20.0
SHORT_S = 0.5
STRANGER = 65_534


@contextmanager
def open_head() -> Iterator[str]:
    """A head that asks nobody for a token: it answers anything."""

    class Anything(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    server = grpc.server(ThreadPoolExecutor(1), handlers=(Anything(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def ray_file(folder: Path, content: str = ADDRESS, mode: int = 0o644) -> Path:
    """The file in which `ray start` leaves its address, where Ray looks for it below ``folder``."""
    path = folder / "ray" / "ray_current_cluster"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def test_a_live_head_is_found_behind_a_dead_one(ray_cluster: Cluster) -> None:
    said: list[str] = []
    dead = unused_endpoint()
    found = first_that_answers([dead, ray_cluster.address], said.append, LONG_S)
    assert found == Head(ray_cluster.address, wants_token=True)
    (line,) = said
    assert dead in line
    assert "cannot be joined" in line
    assert first_that_answers([dead], said.append, LONG_S) is None


def test_a_head_that_takes_no_token_of_ours_is_no_head(ray_cluster: Cluster) -> None:
    for token, reason in ((None, "there is none here"), ("0" * 64, "another token")):
        with pytest.raises(ServiceUnavailable, match=reason):
            wants_token(ray_cluster.address, token, LONG_S)


async def test_what_is_no_head_is_given_up_in_time() -> None:
    with silent() as endpoint, pytest.raises(ServiceUnavailable, match=r"it does not answer within 0\.5 s"):
        wants_token(endpoint, "token", SHORT_S)
    async with serving("verifier") as verifier:
        with pytest.raises(ServiceUnavailable, match="what answers there is no Ray head"):
            await asyncio.to_thread(wants_token, verifier.endpoint, "token", LONG_S)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "with RAY_USE_TLS RAY_TLS_CA_CERT must name a file, and is not set"),
        ({"RAY_TLS_CA_CERT": "/none"}, "RAY_TLS_CA_CERT names /none, which cannot be read"),
        # Whatever else it dies of.
        (dict.fromkeys(TLS_FILES, "/"), r"the process that asks it has failed: IsADirectoryError: .*"),
    ],
)
def test_a_head_that_cannot_be_asked_is_not_called_late(
    files: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, file in {"RAY_USE_TLS": "1", **files}.items():
        monkeypatch.setenv(name, file)
    with pytest.raises(ServiceUnavailable, match=f"^{told}$"):
        wants_token(unused_endpoint(), None, LONG_S)


def test_what_lies_in_the_callers_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grpc.py").write_text("open('stolen', 'w').write(input())")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ServiceUnavailable, match="there is no connection to it"):
        wants_token(unused_endpoint(), "token", LONG_S)
    assert not (tmp_path / "stolen").exists()


def test_a_cluster_that_was_asked_for_is_the_one_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = unused_endpoint()
    monkeypatch.setenv("RAY_ADDRESS", dead)
    with pytest.raises(ServiceUnavailable, match=rf"^the Ray cluster at {dead} \(RAY_ADDRESS\) cannot be joined: "):
        find_head(pytest.fail)
    monkeypatch.setenv("RAY_ADDRESS", LOCAL)
    assert find_head(pytest.fail) is None


@pytest.mark.parametrize(("value", "named"), [("", None), ("auto", None), (LOCAL, LOCAL), ("h:1", "h:1")])
def test_the_environment_names_a_cluster(monkeypatch: pytest.MonkeyPatch, value: str, named: str | None) -> None:
    monkeypatch.setenv("RAY_ADDRESS", value)
    assert asked_for() == named


def test_an_address_of_another_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(InvalidArgument, match="'ray://head:10001' is not HOST:PORT"):
        asked_for()


def test_an_address_is_read_where_ray_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert ADDRESS not in left_here(pytest.fail)
    ray_file(tmp_path, f"{ADDRESS}\n")
    assert left_here(pytest.fail)[0] == ADDRESS


@pytest.mark.parametrize("content", ["", "garbage", "h:99999", "\0" * 4096, "é:1"])
def test_a_file_without_an_address_has_none(tmp_path: Path, content: str) -> None:
    assert [*read_address(ray_file(tmp_path, content), pytest.fail)] == []


def test_an_address_that_others_may_have_written_is_not_believed(tmp_path: Path) -> None:
    said: list[str] = []
    for mode in (0o666, 0o646, 0o664):
        path = ray_file(tmp_path, mode=mode)
        assert [*read_address(path, said.append)] == []
    if os.getuid() == 0:
        path.chmod(0o644)
        os.chown(path, STRANGER, STRANGER)
        assert [*read_address(path, said.append)] == []
    told = f"{path} names a Ray cluster at {ADDRESS!r}, and others may have written it: the file is not believed"
    assert {*said} == {told}
    link = tmp_path / "link"
    link.symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    assert [*read_address(link, pytest.fail), *read_address(tmp_path / "pipe", pytest.fail)] == []


def test_what_is_not_believed_is_told_on_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    assert [*read_address(ray_file(tmp_path, "\x1b[2J\nall is well:1", mode=0o666), said.append)] == []
    assert said[0].isprintable()


@pytest.mark.parametrize("mode", ["disabled", "Disabled", "", "no"])
def test_a_ray_of_our_own_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", LOCAL)
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    told = f"^with RAY_AUTH_MODE={mode} a Ray of our own asks for no token, .*: unset RAY_AUTH_MODE, or .* --insecure$"
    with pytest.raises(ServiceUnavailable, match=told), on_cluster(pytest.fail):
        pytest.fail("it was started")


def test_a_cluster_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_head() as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with (
            pytest.raises(
                ServiceUnavailable, match=rf"^the Ray cluster at {address} asks for no token, .* --insecure$"
            ),
            on_cluster(pytest.fail),
        ):
            pytest.fail("it was joined")


def test_who_asks_for_a_ray_of_its_own_visits_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with pytest.raises(ServiceUnavailable, match=r"RAY_ADDRESS is local.* unset it"), visiting_cluster(pytest.fail):
        pass
