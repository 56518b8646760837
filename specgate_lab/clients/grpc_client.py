"""``specgate.client`` as who measures asks it: the decode loop's requests in, the decode loop's deltas out."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.terminal.served import delta_of, params_of, stats_of
from specgate.client import Client
from specgate.rpc.tls import ClientTlsFiles


class GrpcClient:
    """One channel to one gRPC API; use it as ``async with``.

    ``stats`` are those of the last stream that was read to its end. Times and outcomes of rounds stay on the server.
    """

    def __init__(self, endpoint: str, tls: ClientTlsFiles | None = None) -> None:
        self._client = Client(endpoint, tls)
        self.stats = GenerationStats()

    async def __aenter__(self) -> "GrpcClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def stream(self, request: GenerationRequest, text: str | None = None) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of one generation; closing it early cancels the call.

        Args:
            text: the prompt, in the place of the request's token ids.

        Raises:
            SpecgateError: what the server answered, see ``specgate.errors``.
        """
        prompt = request.prompt_token_ids if text is None else text
        async with aclosing(self._client.stream(prompt, params_of(request))) as deltas:
            async for delta in deltas:
                if delta.stats is not None:
                    self.stats = stats_of(delta.stats)
                yield delta_of(delta)

    async def generate(self, request: GenerationRequest, text: str) -> Delta:
        """Return a whole answer to ``text``. Raises as ``stream`` does."""
        return delta_of(await self._client.generate(text, params_of(request)))
