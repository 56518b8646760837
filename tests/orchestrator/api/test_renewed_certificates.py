"""Certificates are renewed in the middle of streams: at both doors, and between the gateway and both services.

All files change at once to those of another authority. The streams go on to their end over the connections that they
have; a new connection meets the new certificates, and the old authority opens none.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from orchestrator.api.grpc.service import GrpcApi
from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.listen import Listen, TlsSettings
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.services.pool import StaticPool, grpc_health
from specgate.rpc.channel import open_channel
from specgate.rpc.tls import ClientTlsFiles, TlsFiles
from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import types_pb2, verifier_service_pb2
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.orchestrator.api.http_serving import COMPLETIONS, ascii_tokenizer, said_to, serving_http
from tests.orchestrator.api.queues import PATIENT, eventually
from tests.specgate.rpc.certificates import Certificates
from tests.support.fake_services import serving

PROMPT, MAX_TOKENS, GAMMA = "Hi", 64, 4
VERDICTS = 3
"""That a stream which is held back gets: not half of its tokens."""
SOON_S = 60.0


class Authority(NamedTuple):
    """Who signs, and what it signed for a server and for a client."""

    ca: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]

    def install(self, folder: Path) -> None:
        """Put its files where the servers, and the gateway as a client, have theirs."""
        (folder / "ca.pem").write_bytes(self.ca.read_bytes())
        for name in ("server", "client"):
            for kind, file in zip(("pem", "key"), getattr(self, name), strict=True):
                (folder / f"{name}.{kind}").write_bytes(file.read_bytes())


def authority(folder: Path) -> Authority:
    folder.mkdir()
    made = Certificates(folder)
    return Authority(made.ca, made.issue("server"), made.issue("client"))


class Hold:
    """While ``is_on``, sessions that begin get so many verdicts and then none until ``let_go`` is set."""

    def __init__(self) -> None:
        self.is_on = False
        self.num_held = 0
        self.let_go = asyncio.Event()

    def wrap(self, call: Any) -> Any:
        return _HeldCall(call, self) if self.is_on else call


class _HeldCall:
    def __init__(self, call: Any, hold: Hold) -> None:
        self.write, self.cancel = call.write, call.cancel
        self._call, self._hold = call, hold
        self._num_verdicts = 0

    async def read(self) -> Any:
        message = await self._call.read()
        if isinstance(message, verifier_service_pb2.VerifyResponse) and not message.opened:
            self._num_verdicts += 1
            if self._num_verdicts > VERDICTS:
                self._hold.num_held += not self._hold.let_go.is_set()
                await self._hold.let_go.wait()
        return message


class System(NamedTuple):
    """Both services with mutual TLS, both doors with TLS."""

    queue: RequestQueue
    services: tuple[str, str]
    http: str
    grpc: str
    hold: Hold

    def lost(self) -> list[Any]:
        """Return which services requests lost, and went on without or replaced."""
        families = {family.name: family for family in self.queue.metrics.rounds.collect()}
        return list(families["specgate_fallbacks"].samples)


@asynccontextmanager
async def system(folder: Path) -> AsyncIterator[System]:
    (certificate, key), ours = ((folder / f"{name}.pem", folder / f"{name}.key") for name in ("server", "client"))
    tls, files = TlsFiles(certificate, key, folder / "ca.pem"), ClientTlsFiles(folder / "ca.pem", *ours)
    tokenizer, hold, doors = ascii_tokenizer(), Hold(), TlsSettings(certificate=certificate, key=key)
    known = {"tokenizer_fingerprint": {}, "vocab_size": tokenizer.vocab_size}
    async with serving("verifier", tls=tls, **known) as verifier, serving("drafter", tls=tls, **known) as drafter:
        pools = [StaticPool([one.endpoint], grpc_health(files)) for one in (verifier, drafter)]
        connecting = Orchestrator.connect(
            pools[0], pools[1], tokenizer, tls=files, timeouts=PATIENT, wrap_call=hold.wrap
        )
        async with await connecting as orchestrator:
            queue = RequestQueue(orchestrator, GatewaySettings(), Defaults(), "fake")
            grpc_door = GrpcApi(queue, Listen(tls=doors), drain_s=0.0)
            await grpc_door.start()
            try:
                async with serving_http(queue, tls=doors) as url:
                    services = (drafter.endpoint, verifier.endpoint)
                    yield System(queue, services, url.replace("http:", "https:"), grpc_door.endpoint, hold)
            finally:
                await grpc_door.drain()


async def over_https(url: str, ca: Path, read: list[str]) -> None:
    """Put what is read of an answer's text into ``read``."""
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    body |= {"gate": "none", "gamma": GAMMA, "stream": True}
    context = ssl.create_default_context(cafile=ca)
    async with (
        httpx2.AsyncClient(verify=context, timeout=SOON_S) as client,
        client.stream("POST", url + COMPLETIONS, json=body) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                read += [choice["text"] for choice in json.loads(line.removeprefix("data: "))["choices"]]


async def over_grpc(endpoint: str, ca: Path, read: list[str]) -> None:
    """The same at the gRPC door."""
    sampling = types_pb2.SamplingParams(temperature=0.0)
    params = pb.GenerationParams(
        sampling=sampling, max_tokens=MAX_TOKENS, ignore_eos=True, gamma=GAMMA, gate=pb.GATE_NONE
    )
    async with open_channel(endpoint, ClientTlsFiles(ca)) as channel:
        stub: Any = GenerationServiceStub(channel)
        async for response in stub.GenerateStream(pb.GenerateStreamRequest(text=PROMPT, params=params), timeout=SOON_S):
            read.append(response.text)


async def texts(system: System, ca: Path) -> list[str]:
    """Ask both doors by new connections; return both answers."""
    https, grpc = list[str](), list[str]()
    await over_https(system.http, ca, https)
    await over_grpc(system.grpc, ca, grpc)
    return ["".join(https), "".join(grpc)]


async def answers_https(url: str, ca: Path) -> bool:
    async with httpx2.AsyncClient(verify=ssl.create_default_context(cafile=ca), timeout=SOON_S) as client:
        try:
            return (await client.get(f"{url}/healthz")).status_code == 200
        except httpx2.TransportError:
            return False


async def connects(system: System, to: Authority, by: Authority) -> list[bool]:
    """Return whether a new connection is served: at the HTTP door, the gRPC door, the drafter and the verifier.

    It trusts the authority ``to``; services are shown the client certificate of ``by``.
    """
    doors = [await answers_https(system.http, to.ca), await grpc_health(ClientTlsFiles(to.ca))(system.grpc)]
    return doors + [await grpc_health(ClientTlsFiles(to.ca, *by.client))(one) for one in system.services]


async def test_streams_outlive_the_certificates_of_all_their_connections(tmp_path: Path) -> None:
    old, new = authority(tmp_path / "old"), authority(tmp_path / "new")
    files = tmp_path / "files"
    files.mkdir()
    old.install(files)
    async with system(files) as served, asyncio.TaskGroup() as streams:
        expected = await texts(served, old.ca)
        assert expected == [said_to(PROMPT, MAX_TOKENS)] * 2
        assert await connects(served, old, by=old) == [True] * 4
        https, grpc = list[str](), list[str]()
        served.hold.is_on = True
        tasks = [
            streams.create_task(over_https(served.http, old.ca, https)),
            streams.create_task(over_grpc(served.grpc, old.ca, grpc)),
        ]
        await eventually(lambda: served.hold.num_held == 2 and bool("".join(https)) and bool("".join(grpc)))
        served.hold.is_on = False

        new.install(files)
        assert await connects(served, new, by=new) == [True] * 4
        assert await connects(served, old, by=old) == [False] * 4
        assert (await connects(served, new, by=old))[2:] == [False] * 2
        # The gateway's own new sessions show its new certificate to services that know the new authority alone.
        assert await texts(served, new.ca) == expected

        assert not any(task.done() for task in tasks)
        for read, whole in zip((https, grpc), expected, strict=True):
            assert whole.startswith("".join(read))
            assert 0 < len("".join(read)) < len(whole) / 2
        served.hold.let_go.set()
        await asyncio.gather(*tasks)
        assert ["".join(https), "".join(grpc)] == expected
        assert served.lost() == []
