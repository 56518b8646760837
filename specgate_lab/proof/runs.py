"""The runs of a proof: every request of its plan on a running pair, each text with how it came about."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import Pair
from orchestrator.services.timeouts import Timeouts
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.types import Grammar, SamplingParams
from specgate_lab.arrivals import closed_loop
from specgate_lab.gate_choice import ALONE
from specgate_lab.peers.bare_loop import BareLoopProcess
from specgate_lab.proof.judge import judge_greedy, judge_rejection, judge_seeded, law_of
from specgate_lab.proof.plan import (
    GATES,
    GREEDY_SETTINGS,
    REJECTION_BATCH,
    REJECTION_PROMPTS,
    SEEDED,
    SEEDED_SETTINGS,
    Setting,
    greedy_request,
    rejection_requests,
    seeded_request,
)
from specgate_lab.proof.report import Check, CheckResult, Proof
from specgate_lab.timeline import RequestTimeline, time_request

PATIENT = Timeouts(draft_floor_s=60.0, verdict_floor_s=60.0)
"""A slow drafter is no lost one: every round is to have its proposal, also on a busy machine."""

OnText = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of a proof: tokens of each compared text, and texts of a prompt and side for rejection."""

    max_tokens: int
    samples: int

    def num_texts(self, num_prompts: int) -> int:
        """Return how many texts a proof makes with the services."""
        equal = 1 + len(GREEDY_SETTINGS) + len(SEEDED) * (1 + len(SEEDED_SETTINGS))
        return num_prompts * equal + 2 * self.samples * min(num_prompts, REJECTION_PROMPTS)


class Prover:
    """Runs the checks one after the other, each against the target alone on the same verifier.

    Args:
        on_text: called after each text.
    """

    def __init__(
        self, pair: Pair, models: ModelOptions, prompts: Sequence[tuple[int, ...]], sizes: Sizes, on_text: OnText
    ) -> None:
        self._orchestrator = pair.orchestrator
        self._models = models
        self._prompts = prompts
        self._sizes = sizes
        self._on_text = on_text
        target = pair.orchestrator.target_info
        self._dtype = target.dtype
        # With several verifiers another one may run on another processor.
        self._batch_invariant = target.batch_invariant and len(models.verifier) < 2

    async def prove(self, *, hf: bool) -> Proof:
        """Make all checks. With ``hf`` the target alone is compared with transformers, where its files are at hand."""
        greedy = [greedy_request(ids, self._sizes.max_tokens) for ids in self._prompts]
        references = await self._run(greedy, 1)
        checks = [await self._against_transformers(greedy, references, hf=hf)]
        runs = await self._settings(greedy, GREEDY_SETTINGS)
        checks.append(judge_greedy("greedy", references, runs, self._dtype, batch_invariant=self._batch_invariant))
        checks += [await self._seeded(f"shared noise, {name}", *how) for name, how in SEEDED.items()]
        checks.append(await self._rejection(references))
        return Proof(self._about(), checks)

    def _about(self) -> dict[str, Any]:
        target, draft = self._orchestrator.target_info, self._orchestrator.draft_info
        sizes = {"prompts": len(self._prompts), "max_tokens": self._sizes.max_tokens, "samples": self._sizes.samples}
        return {"target": target.model, "draft": draft.model if draft else None, "dtype": self._dtype, **sizes}

    async def _run(self, requests: Sequence[GenerationRequest], batch: int) -> list[RequestTimeline]:
        return await record_all(self._orchestrator, requests, batch, self._on_text)

    async def _settings(
        self, requests: Sequence[GenerationRequest], settings: Sequence[Setting]
    ) -> dict[str, list[RequestTimeline]]:
        """Make the same texts again, under every setting."""
        plain = [replace(request, logprobs=None) for request in requests]
        return {str(one): await self._run([one.choice.of(request) for request in plain], one.batch) for one in settings}

    async def _against_transformers(
        self, requests: Sequence[GenerationRequest], references: Sequence[RequestTimeline], *, hf: bool
    ) -> Check:
        model = self._models.target_model
        if not hf or model is None or self._models.verifier:
            why = "--no-hf was given" if not hf else "the target's files are the named verifier's own"
            return Check(ALONE, CheckResult.SKIPPED, f"not compared with transformers: {why}")
        try:
            async with BareLoopProcess.like_services(self._models, model) as loop:
                texts = [RequestTimeline(token_ids=(await loop.run(request)).token_ids) for request in requests]
        except ServiceUnavailable as error:
            return Check(ALONE, CheckResult.SKIPPED, f"not compared with transformers: {error}")
        return judge_greedy(ALONE, references, {"transformers": texts}, self._dtype, drafts=False)

    async def _seeded(self, name: str, sampling: SamplingParams, grammar: Grammar | None) -> Check:
        tokens, prompts = self._sizes.max_tokens, enumerate(self._prompts, start=1)
        requests = [seeded_request(ids, sampling, tokens, seed, grammar) for seed, ids in prompts]
        try:
            references = await self._run(requests, 1)
        except InvalidArgument as error:
            if grammar is None:
                raise
            return Check(name, CheckResult.SKIPPED, f"the target takes none: {error.problem}")
        try:
            runs = await self._settings(requests, SEEDED_SETTINGS)
        except InvalidArgument as error:
            return Check(name, CheckResult.FAIL, f"what the target alone writes fails with drafts: {error}")
        return judge_seeded(name, references, runs, self._dtype, batch_invariant=self._batch_invariant)

    async def _rejection(self, references: Sequence[RequestTimeline]) -> Check:
        """Sample after the prompts whose first token the target is least sure of: there most drafts are rejected."""
        least_sure = sorted(range(len(references)), key=lambda index: references[index].logprobs[0].top[0][1])
        chosen = {f"prompt {index + 1}": index for index in sorted(least_sure[:REJECTION_PROMPTS])}
        laws = {name: law_of(references[index].logprobs[0]) for name, index in chosen.items()}
        alone: dict[str, list[RequestTimeline]] = {}
        speculated: dict[str, list[RequestTimeline]] = {}
        by_gate: Mapping[str, list[RequestTimeline]] = {str(gate): [] for gate in GATES}
        for name, index in chosen.items():
            ours, theirs = rejection_requests(self._prompts[index], self._sizes.samples)
            alone[name] = await self._run(ours, REJECTION_BATCH)
            speculated[name] = await self._run(theirs, REJECTION_BATCH)
            for request, text in zip(theirs, speculated[name], strict=True):
                by_gate[str(request.gate)].append(text)
        return judge_rejection(laws, alone, speculated, by_gate)


async def record_all(
    orchestrator: Orchestrator,
    requests: Sequence[GenerationRequest],
    batch: int,
    on_text: OnText = lambda: None,
) -> list[RequestTimeline]:
    """Run all requests, ``batch`` at a time; return their texts in order. The first failure ends them all."""

    async def send(request: GenerationRequest, due_s: float) -> RequestTimeline:
        text = (await time_request(orchestrator.generate, request, due_s)).whole()
        on_text()
        return text

    return await closed_loop(send, requests, batch)
