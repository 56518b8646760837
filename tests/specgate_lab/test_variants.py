"""What a request's sample is, and what of a session's messages counts as traffic."""

from google.protobuf.wrappers_pb2 import BytesValue

from specgate_lab.variants import Traffic, sample_of
from tests.specgate_lab.support import a_timeline


def test_a_sample_excludes_the_wait_and_the_tokens_of_the_first_delta() -> None:
    sample = sample_of(a_timeline(0.0, (1.0, 3), (2.0, 2), (4.5, 1)))
    assert (sample.tokens, sample.seconds) == (3, 3.5)


class Echo:
    """A call that answers every message with itself."""

    def __init__(self) -> None:
        self._written: list[BytesValue] = []

    async def write(self, message: BytesValue) -> None:
        self._written.append(message)

    async def read(self) -> BytesValue:
        return self._written[-1]


async def test_traffic_is_both_ways_without_the_openings() -> None:
    traffic = Traffic()
    call = traffic.counted(Echo())
    for size in (1000, 10, 20):
        await call.write(BytesValue(value=bytes(size)))
        await call.read()
    assert traffic.num_bytes == 2 * sum(BytesValue(value=bytes(size)).ByteSize() for size in (10, 20))
