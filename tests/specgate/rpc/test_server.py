"""A real server on loopback: errors, admission, drain, signals."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from specgate.errors import (
    InternalError,
    InvalidArgument,
    NonFiniteLogits,
    OutOfSync,
    ServiceUnavailable,
    SpecgateError,
)
from specgate.rpc.channel import open_channel
from specgate.rpc.endpoint import split_endpoint
from specgate.rpc.server import FLUSH_S, Server
from specgate.rpc.server_options import ServerOptions
from specgate.rpc.status import from_rpc_error
from specgate.v1 import drafter_service_pb2
from tests.specgate.rpc.echo import SECRET, SERVICE, EchoClient, EchoServicer, add_echo_to_server, order, running_server
from tests.support.patience import PATIENCE_S, eventually, patience

ROOT = Path(__file__).resolve().parents[3]
Echo = tuple[Server, EchoServicer, EchoClient]


async def error_of(call: Awaitable[object]) -> SpecgateError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def ask(stream: Any, device: str) -> str:
    """Return what a stream answers to ``device``."""
    await stream.write(order(device))
    return str((await stream.read()).device)


async def test_unary_and_stream_answer(echo: Echo) -> None:
    _, servicer, client = echo
    assert await client.echo("cpu") == "cpu"
    stream = client.chat()
    assert [await ask(stream, "cpu"), await ask(stream, "cuda:0")] == ["cpu", "cuda:0"]
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert servicer.released == 1


@pytest.mark.parametrize(
    ("device", "expected"),
    [("invalid", InvalidArgument), ("out of sync", OutOfSync), ("not finite", NonFiniteLogits)],
)
async def test_a_handler_just_raises(
    echo: Echo, device: str, expected: type[SpecgateError], caplog: pytest.LogCaptureFixture
) -> None:
    """And what is our own fault is logged."""
    _, servicer, client = echo
    assert type(await error_of(client.echo(device))) is expected
    assert type(await error_of(ask(client.chat(), device))) is expected
    assert servicer.released == 1
    assert bool(caplog.records) == issubclass(expected, InternalError)


async def test_a_crash_tells_the_client_nothing(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    """But a number of its own, by which what happened is found in the log."""
    _, _, client = echo
    errors = [await error_of(client.echo("crash")), await error_of(ask(client.chat(), "crash"))]
    numbers = {str(error).partition("correlation id ")[2] for error in errors}
    assert [type(error) for error in errors] == [InternalError, InternalError]
    assert not any(SECRET in str(error) for error in errors)
    assert len(numbers) == 2
    assert all(number and number in caplog.text for number in numbers)
    assert caplog.text.count(SECRET) >= 2


async def fill_and_fail(request: Any, context: Any) -> None:
    """Write until the client takes no more, then fail."""
    try:
        while True:
            async with asyncio.timeout(0.05):
                await context.write(b"x" * 1000)
    except TimeoutError:
        raise ServiceUnavailable("slow") from None


async def read_to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_client_that_reads_nothing_holds_no_failed_call() -> None:
    methods: dict[str, Any] = {"Fill": grpc.unary_stream_rpc_method_handler(fill_and_fail)}
    small_windows = [("grpc.http2.lookahead_bytes", 65_535), ("grpc.http2.bdp_probe", 0)]
    async with running_server(ServerOptions(drain_s=0.0)) as server:
        server.handlers.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        async with grpc.aio.insecure_channel(server.endpoint, small_windows) as channel:
            call: Any = channel.unary_stream(f"/{SERVICE}/Fill")(b"")
            await call.read()
            await eventually(lambda: server.active_calls == 0)
            # Who reads on after all is told why there is no more.
            assert str(await error_of(read_to_the_end(call))) == "slow"


async def test_bytes_that_are_no_message_are_an_invalid_argument(echo: Echo) -> None:
    _, _, client = echo
    assert type(await error_of(client.raw_echo(b"\xff\xff"))) is InvalidArgument
    stream = client.raw_chat()
    await stream.write(b"\xff\xff")
    assert type(await error_of(stream.read())) is InvalidArgument


async def test_pickled_bytes_are_refused_and_nothing_is_unpickled(echo: Echo, tmp_path: Path) -> None:
    server, _, client = echo
    canary = tmp_path / "canary"
    pickled = f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode()
    assert type(await error_of(client.raw_echo(pickled))) is InvalidArgument
    # Past gRPC's framing, too.
    reader, writer = await asyncio.open_connection(*split_endpoint(server.endpoint))
    writer.write(pickled)
    async with patience():
        await reader.read()
    writer.close()
    assert not canary.exists()
    assert await client.echo("cpu") == "cpu"


async def test_a_client_that_leaves_frees_its_stream_at_once(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    server, servicer, client = echo
    stream = client.chat()
    await stream.write(order("hold"))
    await servicer.held.wait()
    assert server.active_calls == 1
    stream.cancel()
    await eventually(lambda: servicer.released == 1)
    await eventually(lambda: server.active_calls == 0)
    assert not caplog.records


async def test_calls_are_refused_until_the_service_is_ready() -> None:
    async with running_server(ready=False) as server, open_channel(server.endpoint) as channel:
        client = EchoClient(channel)
        for _ in range(2):
            error = await error_of(client.echo("cpu"))
            assert isinstance(error, ServiceUnavailable)
            assert "loading" in str(error)
            add_echo_to_server(EchoServicer(), server.handlers)
        await server.set_ready()
        assert await client.echo("cpu") == "cpu"
        assert "UNIMPLEMENTED" in str(await error_of(client.unknown(b"")))


async def test_reflection_names_the_services_and_their_files() -> None:
    name = drafter_service_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name
    stub: Any = reflection_pb2_grpc.ServerReflectionStub
    server = Server(name, ServerOptions())
    await server.start()
    async with open_channel(server.endpoint) as channel:
        call = stub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        answer = (await call.read()).file_descriptor_response.file_descriptor_proto
    await server.drain()
    assert listed >= {name, "grpc.health.v1.Health"}
    assert FileDescriptorProto.FromString(answer[0]).package == "specgate.v1"


async def test_drain_aborts_what_does_not_end(echo: Echo) -> None:
    server, servicer, client = echo
    stream = client.chat()
    await stream.write(order("hold"))
    await servicer.held.wait()
    await server.drain()
    assert type(await error_of(stream.read())) is ServiceUnavailable
    assert servicer.released == 1


async def test_a_stop_during_loading_wins_over_ready() -> None:
    async with running_server(ready=False) as server:
        await server.drain()
        await server.set_ready()
        assert server.draining


async def test_a_port_in_use_is_named() -> None:
    async with running_server() as first:
        port = split_endpoint(first.endpoint)[1]
        with pytest.raises(InvalidArgument, match=f"port: {port} on 127.0.0.1 cannot be bound"):
            await Server(SERVICE, ServerOptions(port=port)).start()


@pytest.mark.parametrize(("field", "value"), [("port", 65536), ("drain_s", -1.0), ("max_engine_age_s", 0.0)])
def test_options_outside_their_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{field}: {value} is outside"):
        ServerOptions(**{field: value})


PROCESS = """
import asyncio
from tests.specgate.rpc.echo import running_server
from specgate.rpc.server_options import ServerOptions

async def main():
    async with running_server(ServerOptions(drain_s=60)) as server:
        print(server.endpoint, flush=True)
        await server.run()

asyncio.run(main())
"""


@asynccontextmanager
async def process() -> AsyncIterator[tuple[asyncio.subprocess.Process, EchoClient]]:
    """Yield a server in a process of its own, and its client."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert child.stdout is not None
    try:
        async with open_channel((await child.stdout.readline()).decode().strip()) as channel:
            yield child, EchoClient(channel)
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def stop(child: asyncio.subprocess.Process, client: EchoClient, number: signal.Signals) -> None:
    """Send a signal; return once new calls are refused for it."""
    child.send_signal(number)
    async with patience():
        while True:
            try:
                await client.echo("cpu")
            except grpc.aio.AioRpcError as error:
                assert "draining" in str(from_rpc_error(error))  # noqa: PT017 - the first one that is refused
                return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_streams_end_and_exits_with_0(number: signal.Signals) -> None:
    async with process() as (child, client):
        stream = client.chat()
        assert await ask(stream, "cpu") == "cpu"
        await stop(child, client, number)
        # A stop that does not wait for the stream has cut it by then.
        await asyncio.sleep(2 * FLUSH_S)
        assert await ask(stream, "cuda:0") == "cuda:0"
        assert child.returncode is None
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await asyncio.wait_for(child.wait(), PATIENCE_S) == 0


async def test_a_second_signal_ends_the_process_at_once() -> None:
    async with process() as (child, client):
        stream = client.chat()
        await stream.write(order("hold"))
        await client.echo("cpu")
        await stop(child, client, signal.SIGTERM)
        child.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(child.wait(), PATIENCE_S) == -signal.SIGINT
        stream.cancel()
