"""Every call has an id: the client's, or a new one; in the logs, and in the answer."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from specgate.rpc.request_id import KEY, outgoing
from tests.specgate.rpc.echo import EchoClient, EchoServicer, order
from tests.support.heard import Heard, hearing
from tests.support.patience import eventually

GIVEN = "my-request/7"


@pytest.fixture
def heard() -> Iterator[Heard]:
    with hearing() as heard:
        yield heard


Echo = tuple[Any, EchoServicer, EchoClient]


async def id_of(call: Any) -> str:
    return str(dict(await call.initial_metadata())[KEY])


async def test_a_clients_id_comes_back_and_is_logged(echo: Echo, heard: Heard) -> None:
    _, _, client = echo
    call = client.echo_call("hello", (KEY, GIVEN))
    assert await id_of(call) == GIVEN
    await call
    (line,) = heard.lines
    assert line.request_id == GIVEN
    assert line.text.startswith("Echo: OK after 0.")


@pytest.mark.parametrize("given", [None, "", "two words", "x" * 129])
async def test_without_a_usable_one_it_gets_a_new_one(echo: Echo, given: str | None) -> None:
    _, _, client = echo
    metadata = () if given is None else ((KEY, given),)
    ids = [await id_of(client.echo_call("hello", *metadata)) for _ in range(2)]
    assert len({*ids, given}) == 3
    assert all(len(one) == 16 for one in ids)


@pytest.mark.parametrize(("device", "outcome"), [("invalid", "INVALID_ARGUMENT"), ("crash", "INTERNAL")])
async def test_errors_have_it_too(echo: Echo, heard: Heard, device: str, outcome: str) -> None:
    """And what is our own fault tells it, so that who has the message alone finds the logs."""
    _, _, client = echo
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.echo_call(device, (KEY, GIVEN))
    assert dict(caught.value.initial_metadata())[KEY] == GIVEN
    # The client may hear of it first.
    await eventually(lambda: heard.starting(f"Echo: {outcome} after "))
    assert {line.request_id for line in heard.lines} == {GIVEN}
    assert (GIVEN in str(caught.value.details())) == (device == "crash")


async def test_who_ends_the_call_is_one_line_and_no_failure(echo: Echo, heard: Heard) -> None:
    _, servicer, client = echo
    stream = client.chat(metadata=((KEY, GIVEN),))
    await stream.write(order("hold"))
    await servicer.held.wait()
    stream.cancel()
    await eventually(lambda: heard.lines)
    (line,) = heard.lines
    assert line.request_id == GIVEN
    assert line.text.startswith("Chat: closed after ")


def test_outside_of_a_request_nothing_is_sent() -> None:
    assert outgoing() == ()
