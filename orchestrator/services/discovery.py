"""Which models the services of a pool serve, and whether draft and target fit together."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from orchestrator.decode.ports import Drafter, Lease, Pool, TextTooLong, VerifierDialer
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.gates import FIXED_GAMMA
from orchestrator.services.links import GrpcDialer
from orchestrator.services.streams import ChannelCache
from orchestrator.services.timeouts import Timeouts
from specgate.errors import InvalidArgument, ModelLoadError, ServiceUnavailable, SpecgateError, TokenizerMismatch
from specgate.rpc.tls import ClientTlsFiles
from specgate.tokenizer import first_difference
from specgate.types import PROTO_VERSION, Capability, ForwardCost, ModelInfo, SessionSpec

HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
RETRY_INTERVAL_S = 0.1
ANSWER_SHARE = 1 / 3
"""One service's share of the whole time, so that a hung one leaves time for others."""
NUM_PINGS = 3
"""The first of them may open the connection."""
UNKNOWN_TOKEN_US = 1000.0
"""Of a draft token, where no drafter tells."""
ANSWER_S = 3.0
"""The most that one service may take: a loaded one answers at once."""

OnWait = Callable[[SpecgateError], None]
"""Called once, with the reason why a service does not answer yet."""


class Dialer(VerifierDialer, Protocol):
    """Opens sessions on services of both kinds, and asks what they serve."""

    async def open_drafter(self, lease: Lease, spec: SessionSpec) -> Drafter:
        """See ``ports.DrafterDialer``."""
        ...

    async def model_info(self, lease: Lease, role: str, timeout_s: float | None = None) -> ModelInfo:
        """Return what a service says of itself; ``role`` is "drafter" or "verifier".

        Raises:
            InvalidArgument: another kind of service answers there.
            SpecgateError: none answers in ``timeout_s``, by default the time for an opening.
        """
        ...


async def ask_one(
    pool: Pool, dialer: Dialer, role: str, timeout_s: float, on_wait: OnWait = lambda error: None
) -> ModelInfo:
    """Return the model information of one service of ``pool``; services that do not answer yet are passed over.

    Raises:
        ServiceUnavailable: none answered within ``timeout_s``.
        InvalidArgument: one is of another kind, or speaks another version of the contract.
    """
    cause: SpecgateError | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await _ask(pool, dialer, role, min(timeout_s * ANSWER_SHARE, ANSWER_S))
                except InvalidArgument:
                    raise
                except SpecgateError as error:
                    if cause is None:
                        cause = error
                        on_wait(error)
                    await asyncio.sleep(RETRY_INTERVAL_S)
    except TimeoutError:
        raise ServiceUnavailable(f"no {role} answered within {timeout_s:g} s: {cause or 'none was ready'}") from cause


async def ask_verifier(
    pool: Pool,
    tls: ClientTlsFiles | None,
    timeout_s: float = Timeouts().connect_s,
    on_wait: OnWait = lambda error: None,
) -> ModelInfo:
    """Return what one verifier of ``pool`` serves, over a connection of its own.

    Raises:
        ServiceUnavailable, InvalidArgument: see ``ask_one``.
    """
    channels = ChannelCache(tls)
    try:
        return await ask_one(pool, GrpcDialer(channels, ANSWER_S), "verifier", timeout_s, on_wait)
    finally:
        await channels.close()


def tokenizer_of(served: ModelInfo, known: str) -> TextTokenizer | None:
    """Return the tokenizer of the model that a verifier serves, None where it is not on this machine.

    A verifier reports no path. The tokenizer is that of ``known``, a folder here, or of the hub id that it reports,
    whichever has the same fingerprint.
    """
    names = [known, served.model] if HUB_ID.fullmatch(served.model) else [known]
    for name in names if served.tokenizer_fingerprint else ():
        try:
            tokenizer = TextTokenizer.load(name)
        except ModelLoadError:
            continue
        if tokenizer and first_difference(served.tokenizer_fingerprint, tokenizer.fingerprint) is None:
            return tokenizer
    return None


async def _ask(pool: Pool, dialer: Dialer, role: str, timeout_s: float) -> ModelInfo:
    lease = await pool.lease()
    try:
        info = await dialer.model_info(lease, role, timeout_s)
    except BaseException as error:
        pool.release(lease, failed=isinstance(error, Exception))
        raise
    pool.release(lease)
    _check_version(role, lease, info)
    return info


async def round_trips_us(pool: Pool, dialer: Dialer, role: str) -> dict[str, float]:
    """Return how many microseconds a service of ``pool`` takes to answer once it is connected, by its endpoint; {} if
    it does not.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            lease = await pool.lease()
    except (SpecgateError, TimeoutError):
        return {}
    try:
        return {lease.endpoint: await _round_trip_us(dialer, lease, role)}
    except SpecgateError:
        return {}
    finally:
        pool.release(lease)


async def _round_trip_us(dialer: Dialer, lease: Lease, role: str) -> float:
    """Return the least of a few: what makes one longer is no way."""
    took_s: list[float] = []
    for _ in range(NUM_PINGS):
        start_s = time.perf_counter()
        await dialer.model_info(lease, role, ANSWER_S)
        took_s.append(time.perf_counter() - start_s)
    return min(took_s) * 1e6


def _check_version(role: str, lease: Lease, info: ModelInfo) -> None:
    if info.proto_version != PROTO_VERSION:
        raise InvalidArgument(role, f"{lease.endpoint} speaks {info.proto_version!r}, not {PROTO_VERSION!r}")


def check_pair(target: ModelInfo, draft: ModelInfo) -> None:
    """Raise TokenizerMismatch, naming the component, unless the two share their token ids."""
    component = first_difference(target.tokenizer_fingerprint, draft.tokenizer_fingerprint)
    if component is not None:
        raise TokenizerMismatch(
            f"target {target.model} and draft {draft.model} have tokenizers that differ in their {component}"
        )


class KnownDrafters:
    """A ``DrafterDialer`` that knows each drafter's context length, capabilities and costs.

    It asks a drafter before the first session there, and before each session of a text that may pass its context: a
    drafter of another release may have taken its place.

    Args:
        info: of a drafter that was asked before; None if none has answered.
        round_trips_us: those that are known, by endpoint.
    """

    def __init__(
        self, dialer: Dialer, target: ModelInfo, info: ModelInfo | None, round_trips_us: Mapping[str, float]
    ) -> None:
        self.info = info
        self._dialer = dialer
        self._target = target
        self._infos: dict[str, ModelInfo] = {}
        self._round_trips_us = dict(round_trips_us)

    @property
    def round_trip_us(self) -> float:
        """That of the nearest drafter that is known; 0 if none is."""
        return min(self._round_trips_us.values(), default=0.0)

    @property
    def forward_costs(self) -> Sequence[ForwardCost]:
        """Those of the fastest drafter that is known; () if none has told."""
        known = (one.forward_costs for one in (self.info, *self._infos.values()) if one is not None)
        return min(filter(None, known), key=lambda costs: costs[0].forward_us, default=())

    def cost_us(self, endpoint: str, num_sessions: int) -> float:
        """See ``ports.DrafterDialer``: the time of a draft, as if those of all sessions were drafted one after another.
        One that was not met counts as near and as fast as the fastest, so that it will be; a full one is no choice.
        """
        known = self._infos.get(endpoint)
        if known is not None and num_sessions >= known.max_sessions:
            return math.inf
        costs = (known.forward_costs if known else ()) or self.forward_costs
        token_us = costs[0].forward_us if costs else UNKNOWN_TOKEN_US
        return self._round_trips_us.get(endpoint, 0.0) + (num_sessions + 1) * FIXED_GAMMA * token_us

    async def open_drafter(self, lease: Lease, spec: SessionSpec) -> tuple[Drafter, int]:
        """See ``ports.DrafterDialer``."""
        known = self._infos.get(lease.endpoint)
        if known is None or spec.max_length > known.context_length:
            known = await self._meet(lease)
        try:
            return await self._open(lease, spec, known)
        except InvalidArgument:
            # It may have restarted with less memory.
            now = await self._meet(lease)
            if now.context_length >= known.context_length:
                raise
            return await self._open(lease, spec, now)

    async def _open(self, lease: Lease, spec: SessionSpec, info: ModelInfo) -> tuple[Drafter, int]:
        length, holds = len(spec.committed_token_ids), info.context_length
        if Capability.FIRST_POSITION in info.capabilities:
            spec = fitting(spec, holds)
        elif length >= holds:
            raise TextTooLong("prompt_token_ids", f"{length} tokens, the drafter at {lease.endpoint} holds {holds}")
        return await self._dialer.open_drafter(lease, spec), spec.first_position + holds

    async def _meet(self, lease: Lease) -> ModelInfo:
        try:
            info = await self._dialer.model_info(lease, "drafter")
            _check_version("drafter", lease, info)
            if lease.endpoint not in self._round_trips_us:
                self._round_trips_us[lease.endpoint] = await _round_trip_us(self._dialer, lease, "drafter")
        except InvalidArgument as error:
            # One wrong endpoint of several is no fault of the request.
            raise ServiceUnavailable(str(error)) from None
        check_pair(self._target, info)
        self.info = self.info or info
        self._infos[lease.endpoint] = info
        return info


def fitting(spec: SessionSpec, context_length: int) -> SessionSpec:
    """Return what opens a session on a drafter that holds so many tokens: the text's end, where it gets too long.

    A quarter of the drafter's tokens at the least are left for what is to come, and half of them after a cut: so half a
    context is read again, in the background, for each half of a context. A text is cut at quarters of a context, so
    that its next turn begins with the same tokens, and finds them cached.
    """
    num_committed, quarter = len(spec.committed_token_ids), max(context_length // 4, 1)
    if spec.max_length <= context_length or num_committed <= 3 * quarter:
        return spec
    return spec.last(max(num_committed - -(-(num_committed - 2 * quarter) // quarter) * quarter, 1))
