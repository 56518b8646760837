"""The facade of the system: one orchestrator runs many generations."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Self
from weakref import WeakSet

from orchestrator.decode.admission import make_spec
from orchestrator.decode.output_text import OutputText
from orchestrator.decode.ports import Pool
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.session import OnLoss, OnRecord, Session
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.generation import Generation
from orchestrator.policy.auto.costs import MeasuredCosts
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.gates import make_policy
from orchestrator.services.discovery import Dialer, KnownDrafters, ask_one, check_pair, round_trips_us
from orchestrator.services.failover import FailoverVerifier
from orchestrator.services.links import GrpcDialer, WrapCall
from orchestrator.services.reattach import NoDrafter, ReattachingDrafter
from orchestrator.services.streams import ChannelCache
from orchestrator.services.timeouts import Timeouts
from specgate.errors import MISCONFIGURED, InvalidArgument, SpecgateError, TokenizerMismatch, reason_of
from specgate.rpc.tls import ClientTlsFiles
from specgate.tokenizer import first_difference
from specgate.types import Capability, ModelInfo

__all__ = ["Generation", "Orchestrator"]

SEARCH_DELAY_S = 0.002
"""A search begins so much later: the messages of the current round are sent by then."""

_log = logging.getLogger(__name__)


class Orchestrator:
    """Runs requests on a pool of verifiers and a pool of drafters.

    ``orchestrator.open_orchestrator`` makes one from two models, ``connect`` from pools of running services.
    """

    def __init__(
        self,
        verifiers: Pool,
        drafters: Pool | None,
        tokenizer: TextTokenizer | None,
        tls: ClientTlsFiles | None,
        timeouts: Timeouts,
        wrap_call: WrapCall | None,
        dialer: Dialer | None = None,
        drafter_price: float | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.target_info: ModelInfo
        self._verifiers = verifiers
        self._drafters = drafters
        self._timeouts = timeouts
        self._channels = ChannelCache(tls)
        self._dialer = dialer or GrpcDialer(self._channels, timeouts.open_s, wrap_call)
        self._known_drafters: KnownDrafters
        self._round_trip_us = 0.0
        """To a verifier."""
        self.learner = Learner(self.measured_costs, between_events, self._copies, drafter_price)
        self._running: WeakSet[Generation] = WeakSet()

    @classmethod
    async def connect(
        cls,
        verifiers: Pool,
        drafters: Pool | None = None,
        tokenizer: TextTokenizer | None = None,
        *,
        tls: ClientTlsFiles | None = None,
        timeouts: Timeouts = Timeouts(),
        wrap_call: WrapCall | None = None,
        dialer: Dialer | None = None,
        drafter_price: float | None = None,
    ) -> Self:
        """Return an orchestrator after one service of each pool has reported its model, and the two fit together.

        A drafter pool without an answer is no error: the target decodes alone until a drafter answers. The pools are
        closed with the orchestrator, and when this method fails.

        Args:
            wrap_call: wraps the gRPC call of every session.
            dialer: opens sessions without gRPC; then ``tls`` and ``wrap_call`` have no effect.
            drafter_price: what ``auto`` is after, see ``Prices``.

        Raises:
            ServiceUnavailable: no verifier answers.
            TokenizerMismatch: two tokenizers differ; the message names the component.
            InvalidArgument: an address belongs to no service of its kind.
        """
        orchestrator = cls(verifiers, drafters, tokenizer, tls, timeouts, wrap_call, dialer, drafter_price)
        try:
            await orchestrator._meet_services()
        except BaseException:
            await orchestrator.close()
            raise
        return orchestrator

    async def _meet_services(self) -> None:
        self.target_info = await ask_one(self._verifiers, self._dialer, "verifier", self._timeouts.connect_s)
        self._check_tokenizer()
        to_verifiers_us = await round_trips_us(self._verifiers, self._dialer, "verifier")
        self._round_trip_us = max(to_verifiers_us.values(), default=0.0)
        draft_info, to_drafters_us = None, dict[str, float]()
        if self._drafters is not None:
            try:
                draft_info = await ask_one(self._drafters, self._dialer, "drafter", self._timeouts.connect_drafter_s)
            except MISCONFIGURED:
                raise
            except SpecgateError as error:
                _log.warning("the target decodes alone for now: %s", reason_of(error))
        if self._drafters is not None and draft_info is not None:
            check_pair(self.target_info, draft_info)
            to_drafters_us = await round_trips_us(self._drafters, self._dialer, "drafter")
        self._known_drafters = KnownDrafters(self._dialer, self.target_info, draft_info, to_drafters_us)

    def _check_tokenizer(self) -> None:
        if self.tokenizer is None or not self.target_info.tokenizer_fingerprint:
            return
        component = first_difference(self.target_info.tokenizer_fingerprint, self.tokenizer.fingerprint)
        if component is not None:
            target = self.target_info.model
            raise TokenizerMismatch(f"the tokenizer given and that of target {target} differ in their {component}")

    @property
    def has_drafters(self) -> bool:
        """Whether there is a pool of drafters, even an empty one."""
        return self._drafters is not None

    @property
    def draft_info(self) -> ModelInfo | None:
        """What the drafters serve; None until one has answered."""
        return self._known_drafters.info

    def _copies(self) -> bool:
        return self.draft_info is not None and not self.draft_info.draft_method.has_model

    def measured_costs(self) -> MeasuredCosts:
        """Return the forward times that the services measured when they loaded."""
        infos = (self.target_info, self.draft_info)
        runs = all(info is not None and Capability.RUNNING_DRAFTS in info.capabilities for info in infos)
        round_trip_us = self._round_trip_us + self._known_drafters.round_trip_us if runs else 0.0
        return MeasuredCosts(self.target_info.forward_costs, self._known_drafters.forward_costs, round_trip_us)

    async def check_verifiers(self, timeout_s: float) -> None:
        """Raise SpecgateError unless a verifier answers within ``timeout_s``. Holds a lease meanwhile."""
        await ask_one(self._verifiers, self._dialer, "verifier", timeout_s)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of ``text``, as ``GenerationRequest`` takes them.

        Raises:
            InvalidArgument: the target has no tokenizer here.
        """
        if self.tokenizer is None:
            raise InvalidArgument("prompt", "the target's tokenizer is not on this machine; give token ids")
        return self.tokenizer.encode(text)

    def generate(
        self, request: GenerationRequest, on_record: Iterable[OnRecord] = (), on_loss: OnLoss | None = None
    ) -> Generation:
        """Return the generation of one request. It opens its sessions when it is iterated.

        Args:
            on_record, on_loss: additional subscribers, see ``Session``.

        Raises:
            InvalidArgument: the request does not fit the target; the message names the field.
        """
        spec = make_spec(request, self.target_info, has_text=self.tokenizer is not None)
        output = self._output(request)
        observer = self.learner.observer(request)
        session = Session(spec, output, on_record=[*filter(None, (observer,)), *on_record], on_loss=on_loss)
        timeouts = self._timeouts.of_text(spec.max_length, *self.measured_costs()[:2])
        drafter = self._drafter(request, session, timeouts)
        on_attach = observer.attached if observer is not None else None
        verifier = FailoverVerifier(self._verifiers, self._dialer, session, timeouts, on_attach)
        policy = make_policy(request, drafter, self.learner)
        generation = Generation(session, drafter, verifier, policy, observer)
        self._running.add(generation)
        return generation

    def _output(self, request: GenerationRequest) -> OutputText:
        decoder = None
        if self.tokenizer is not None:
            decoder = self.tokenizer.incremental(
                request.prompt_token_ids,
                skip_special_tokens=request.skip_special_tokens,
                shown_token_ids=request.shown_token_ids,
            )
        return OutputText(decoder, request.stop, min_tokens=request.min_tokens, include_stop=request.include_stop)

    def _drafter(
        self, request: GenerationRequest, session: Session, timeouts: Timeouts
    ) -> ReattachingDrafter | NoDrafter:
        if self._drafters is None or request.max_gamma == 0:
            return NoDrafter()
        return ReattachingDrafter(self._drafters, self._known_drafters, session, timeouts)

    async def close(self) -> None:
        """Cancel all generations, close the channels and the pools. Safe to call twice."""
        for generation in list(self._running):
            await generation.aclose()
        await self._channels.close()
        await self._verifiers.close()
        if self._drafters is not None:
            await self._drafters.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def between_events(steps: Iterator[None]) -> None:
    """Run long work step by step on the running event loop, with other events in between, so that no round waits."""
    loop = asyncio.get_running_loop()

    def step() -> None:
        for _ in steps:
            loop.call_soon(step)
            return

    loop.call_later(SEARCH_DELAY_S, step)
