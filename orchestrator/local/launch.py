"""Starts or names the services of a pair, reads the tokenizer, and connects an orchestrator to them."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from orchestrator.api.settings.settings import BUNDLED_TARGET
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.cores import cores_for_pinning
from orchestrator.local.loading_bars import loading_bars
from orchestrator.local.local_services import LocalService, OnLoading, OnNotice, Supervised
from orchestrator.local.pair_settings import PairSettings, check_model
from orchestrator.services.discovery import ask_verifier, tokenizer_of
from orchestrator.services.links import WrapCall
from orchestrator.services.pool import StaticPool, grpc_health
from orchestrator.services.timeouts import LOADING_S, Timeouts
from specgate.errors import SpecgateError
from specgate.rpc.tls import ClientTlsFiles
from specgate.types import ModelInfo

PAGE_TOKENS = 2048
MIN_SESSIONS = 16
MAX_KV_TOKENS_A_SESSION = 1 << 17
_MARGIN_TOKENS = 128
"""Room for special tokens and a proposal beyond a session's end."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much services that start here are to hold; the length is an upper bound, in tokens."""

    sessions: int
    tokens_a_session: int

    @property
    def kv_tokens(self) -> int:
        """Whole pages for every session at once."""
        tokens = min(self.tokens_a_session, MAX_KV_TOKENS_A_SESSION)
        return self.sessions * -(-tokens // PAGE_TOKENS) * PAGE_TOKENS

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a service's settings: what was given, and room for all sessions where that was not."""
        return {"max_sessions": self.sessions, "kv_tokens": self.kv_tokens, **given}


class AskedPrompt(Protocol):
    """A prompt as it was given, and what is asked for it."""

    @property
    def text(self) -> str | None: ...
    @property
    def token_ids(self) -> tuple[int, ...] | None: ...
    @property
    def request(self) -> GenerationRequest: ...


def capacity_for(prompts: Sequence[AskedPrompt], concurrency: int) -> Capacity:
    """Return what the services must hold. No tokenizer makes more tokens of a text than it has bytes."""
    longest = max(
        len(prompt.token_ids or (prompt.text or "").encode("utf-8", "replace")) + prompt.request.max_tokens
        for prompt in prompts
    )
    return Capacity(max(concurrency, MIN_SESSIONS), longest + _MARGIN_TOKENS)


@dataclass(frozen=True, slots=True)
class Pair:
    """A running pair. ``cores`` are those that drafter and verifier are pinned to.

    ``wrap_call`` is for a caller that connects to the services too.
    """

    orchestrator: Orchestrator
    tokenizer: TextTokenizer | None
    cores: tuple[int, int] | None = None
    verifiers: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    wrap_call: WrapCall | None = None

    @property
    def models(self) -> dict[str, Any]:
        """What each service serves, and where, as results files tell it."""
        infos = {"target": self.orchestrator.target_info, "draft": self.orchestrator.draft_info}
        fields = ("model", "num_parameters", "dtype", "device")
        return {
            role: {field: getattr(info, field) for field in fields} | {"model": Path(info.model).name}
            for role, info in infos.items()
            if info is not None
        }


@asynccontextmanager
async def open_pair(
    models: PairSettings,
    *,
    with_draft: bool,
    capacity: Capacity,
    log: Console,
    timeouts: Timeouts = Timeouts(),
    wrap_call: WrapCall | None = None,
) -> AsyncIterator[Pair]:
    """Start the services that are not named, connect to all of them, and end what was started; or load the models here.

    ``wrap_call`` is put around the call of every session; both models here make no calls.

    Raises:
        InvalidArgument: the settings do not go together, or a service refuses them.
        ServiceUnavailable: a service does not start or does not answer.
        TokenizerMismatch: the two models do not share their token ids.
    """
    if with_draft:
        models.check_draft()
    if models.in_process:
        async with _pair_here(models, _missing(models, with_draft, None, capacity), log, timeouts) as pair:
            yield pair
        return
    cores = _pinned_cores(models, log)
    async with AsyncExitStack() as stack:
        started = [supervise(service, log, stack) for service in _missing(models, with_draft, cores, capacity)]
        with loading_bars(log, [one.role for one in started]) as on_loading:
            tokenizer = await _load(models, started, on_loading)
        endpoints = {"verifier": models.verifier, "drafter": models.drafter if with_draft else ()}
        endpoints |= {one.role: (one.endpoint,) for one in started}
        tls = models.client_tls
        verifiers = StaticPool(endpoints["verifier"], grpc_health(tls), field="verifier")
        drafters = StaticPool(endpoints["drafter"], grpc_health(tls), field="drafter") if with_draft else None
        if models.verifier:
            stack.push_async_callback(verifiers.close)
            served = await _loaded_verifier(models, verifiers, tls, log)
            if models.target_model is None:
                tokenizer = await _served_tokenizer(served, log)
        connecting = Orchestrator.connect(
            verifiers, drafters, tokenizer, tls=tls, timeouts=timeouts, wrap_call=wrap_call
        )
        async with await connecting as orchestrator:
            yield Pair(orchestrator, tokenizer, cores, endpoints["verifier"], endpoints["drafter"], wrap_call)


@asynccontextmanager
async def _pair_here(
    models: PairSettings, services: Sequence[LocalService], log: Console, timeouts: Timeouts
) -> AsyncIterator[Pair]:
    # It imports torch.
    from orchestrator.local.in_process import InProcessPool, loaded

    async with AsyncExitStack() as stack:
        with loading_bars(log, [one.role for one in services]) as on_loading:
            dialer = await stack.enter_async_context(loaded(services, on_loading, _notices_to(log)))
            tokenizer = await _tokenizer(models)
        drafters = InProcessPool() if len(services) > 1 else None
        connecting = Orchestrator.connect(InProcessPool(), drafters, tokenizer, timeouts=timeouts, dialer=dialer)
        yield Pair(await stack.enter_async_context(await connecting), tokenizer)


def _notices_to(log: Console) -> OnNotice:
    return lambda notice: log.print(notice, style="yellow", markup=False)


def _pinned_cores(models: PairSettings, log: Console) -> tuple[int, int] | None:
    cores = cores_for_pinning() if models.pin else None
    if models.pin and cores is None:
        log.print("pinning has no effect: this process may use one core only", style="yellow")
    return cores


def _missing(
    models: PairSettings, with_draft: bool, cores: tuple[int, int] | None, capacity: Capacity
) -> list[LocalService]:
    """Return the services that are not named, the drafter on the first core.

    Raises:
        InvalidArgument: a model's folder is missing.
    """
    check_model("target", models.target)
    check_model("draft", models.draft)
    drafter_core, verifier_core = cores or (None, None)
    missing: list[LocalService] = []
    if models.target_model is not None and not models.verifier:
        missing.append(local_service(models, "verifier", models.target_model, verifier_core, capacity))
    if with_draft and models.starts_drafter:
        missing.append(local_service(models, "drafter", models.draft_model or "", drafter_core, capacity))
    return missing


def local_service(models: PairSettings, role: str, model: str, core: int | None, capacity: Capacity) -> LocalService:
    """Return what one service of our own is started with."""
    given = models.service.given_to(role)
    if role == "drafter":
        given |= {"run_ahead": models.run_ahead, "target_tokenizer": models.tokenizer or models.target_model}
    return LocalService.of(role, model, cpu=core, **capacity.settings(given))


def supervise(service: LocalService, log: Console, stack: AsyncExitStack) -> Supervised:
    """Return a service that is started again when it dies, and ended with ``stack``."""
    supervised = Supervised(service, on_notice=_notices_to(log))
    stack.push_async_callback(supervised.stop)
    return supervised


async def _load(models: PairSettings, started: Sequence[Supervised], on_loading: OnLoading) -> TextTokenizer | None:
    """Start all services side by side, and read the tokenizer meanwhile."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in started:
                group.create_task(one.start(on_loading))
            tokenizer = group.create_task(_tokenizer(models))
    except BaseExceptionGroup as failures:
        # The first failure cancelled the others, so it is the one to raise.
        raise failures.exceptions[0] from None
    return tokenizer.result()


async def _tokenizer(models: PairSettings) -> TextTokenizer | None:
    if models.target_model is None:
        return None
    return await asyncio.to_thread(TextTokenizer.load, models.target_model, models.tokenizer)


async def _loaded_verifier(
    models: PairSettings, verifiers: StaticPool, tls: ClientTlsFiles | None, log: Console
) -> ModelInfo:
    """Return what a named verifier serves, once one has loaded. Until then say which one it waits for, and why."""
    limit_s, names, notice = models.verifier_wait_s or LOADING_S, ", ".join(models.verifier), _notices_to(log)

    def on_wait(error: SpecgateError) -> None:
        notice(f"waiting up to {limit_s:g} s for the verifier at {names}: {error}")

    return await ask_verifier(verifiers, tls, limit_s, on_wait)


async def _served_tokenizer(served: ModelInfo, log: Console) -> TextTokenizer | None:
    """Return the tokenizer of the model that a named verifier serves, where its files are on this machine too."""
    tokenizer = await asyncio.to_thread(tokenizer_of, served, BUNDLED_TARGET)
    if tokenizer is None:
        log.print(f"the tokenizer of {served.model} was not found; text needs it: give its target", style="yellow")
    return tokenizer
