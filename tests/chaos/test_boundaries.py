"""What strangers reach of a service, and what they are told."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from specgate.rpc.channel import open_channel
from specgate.rpc.tls import ClientTlsFiles
from specgate.v1 import types_pb2
from tests.specgate.rpc.certificates import Certificates
from tests.support.chaos_fleet import ask
from tests.support.chaos_table import ChaosTable
from tests.support.in_process import STUBS
from tests.support.services import PAIR, running
from tests.support.two_hosts import two_hosts, why_not

pytestmark = pytest.mark.chaos


def test_strangers_hear_no_path(chaos: ChaosTable) -> None:
    with chaos.row("verifier: GetModelInfo") as row, running("verifier", PAIR / "target") as verifier:
        told = ask(verifier.endpoint, "verifier").model
        row.seen = f"told: {told}"
        assert told == "target"


async def test_wrong_clients_of_tls(chaos: ChaosTable, tmp_path: Path) -> None:
    own = Certificates(tmp_path)
    (tmp_path / "other").mkdir()
    other = Certificates(tmp_path / "other")
    certificate, key = own.issue("server")
    flags = [f"--tls-certificate={certificate}", f"--tls-key={key}", f"--tls-client-ca={own.ca}"]
    clients = {
        "plain text": None,
        "another CA": ClientTlsFiles(other.ca, *own.issue("one")),
        "no certificate": ClientTlsFiles(own.ca),
        "a certificate of another CA": ClientTlsFiles(own.ca, *other.issue("two")),
    }
    with (
        chaos.row("verifier with mutual TLS: plain text, another CA, no certificate, a stranger's") as row,
        running("verifier", PAIR / "target", *flags) as verifier,
    ):
        for name, files in clients.items():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _ask(verifier.endpoint, files)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, name
        assert (await _ask(verifier.endpoint, ClientTlsFiles(own.ca, *own.issue("friend")))).role == "verifier"
        row.seen = f"{len(clients)} of {len(clients)} refused, the right one is served"


async def _ask(endpoint: str, files: ClientTlsFiles | None) -> Any:
    async with open_channel(endpoint, files) as channel:
        return await STUBS["verifier"](channel).GetModelInfo(types_pb2.GetModelInfoRequest(), timeout=10)


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")
def test_a_start_without_a_network(chaos: ChaosTable) -> None:
    with chaos.row("verifier: started again where there is no network at all") as row, two_hosts() as hosts:
        hosts.plug(in_=False)
        with running("verifier", PAIR / "target", prefix=hosts.on("b")) as verifier:
            row.seen = "it serves"
            assert verifier.pid
