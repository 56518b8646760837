"""One search: what is measured first, the trials, and the runs of the best sets."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.local.cores import cores_for_pinning
from orchestrator.local.launch import Capacity, Pair, capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import Prompt, with_token_ids
from specgate.errors import InvalidArgument
from specgate.types import Verification
from specgate.weights import fingerprint
from specgate_lab.progress import StageBars
from specgate_lab.tune.layers.blocks import Blocks, warm_starts
from specgate_lab.tune.layers.costs import measure_times, probes
from specgate_lab.tune.layers.drafters import VARIANTS, Confirmed, SkipDrafters
from specgate_lab.tune.layers.predict import Judged, MeasuredTimes
from specgate_lab.tune.layers.report import SearchReport
from specgate_lab.tune.layers.scorer import BlockScorer
from specgate_lab.tune.layers.search import LayerSearch
from specgate_lab.tune.layers.study import LayerStudy
from specgate_lab.tune.recording import RecordedText, record_texts
from specgate_lab.tune.versus_target import of_length, seeded

T = TypeVar("T")
FEW_PROMPTS = 4
"""With fewer, no prompt can be spared for the final runs alone."""
MIN_LAYERS = 2
FINALISTS = 2
"""Sets that are run for real."""
RANDOM_SETS = 8
"""Sets of the same size that the best one is held against."""
MEASURED = ("device", "dtype", "context_tokens")


@dataclass(frozen=True, slots=True)
class Search:
    """One run of the command: so many ``trials``, and ``repeats`` of each finalist."""

    models: ModelOptions
    trials: int
    repeats: int
    prompts: Sequence[Prompt]
    study: LayerStudy
    bars: StageBars
    log: Console

    @property
    def run_ahead(self) -> bool:
        return bool(self.models.service.value("run_ahead"))

    @property
    def capacity(self) -> Capacity:
        return capacity_for(self.prompts, 1)

    async def run(self, skip_file: Path) -> SearchReport:
        """Resume the study where it is, and return the result."""
        if "times" not in self.study.known:
            await self._measure()
        known = self.study.known
        blocks, times = Blocks(*known["blocks"]), MeasuredTimes.of_object(known["times"])
        texts = [RecordedText(**text) for text in known["texts"]]
        tried, random = await self._try_sets(blocks, times, self._half(texts, 0))
        confirmed = await self._confirm(blocks, [*tried[:FINALISTS], random[len(random) // 2]], texts)
        return SearchReport(
            {**self.study.subject, **{name: known[name] for name in MEASURED}},
            blocks,
            times,
            self.study.known["harm"],
            self.study.judged(blocks),
            random,
            sorted((one.finalist for one in confirmed[:-1]), key=lambda one: -one.best.ratio),
            confirmed[-1].finalist,
            sorted({name for one in confirmed for name in one.texts_differ}),
            skip_file,
        )

    async def _measure(self) -> None:
        """Keep what every trial needs: the target's texts, and measured times."""
        async with self._scorer([]) as (_, blocks):
            if blocks.num_layers < MIN_LAYERS:
                problem = f"has {blocks.num_layers} layer; {MIN_LAYERS} are needed to leave one out"
                raise InvalidArgument("target", problem)
        async with open_pair(self.models, with_draft=False, capacity=self.capacity, log=self.log) as pair:
            info, requests = pair.orchestrator.target_info, self._requests(pair.tokenizer)
            on_text = self.bars.counter("target writes", len(requests))
            recording = await record_texts(pair.orchestrator, requests, on_text)
            on_probe = self.bars.counter("drafts are timed", len(probes(blocks)))
            times = await measure_times(self._drafters(pair, blocks), requests, recording.alone_us, on_probe)
        self.study.keep(
            blocks=blocks,
            texts=[asdict(text) for text in recording.texts],
            times=asdict(times),
            device=info.device,
            dtype=info.dtype,
            context_tokens=max(len(text.prompt) + len(text.answer) for text in recording.texts),
        )

    async def _try_sets(
        self, blocks: Blocks, times: MeasuredTimes, texts: Sequence[RecordedText]
    ) -> tuple[list[Judged], list[Judged]]:
        """Return all sets that were tried, and random sets of as many blocks; the best one of both first."""
        study = self.study
        async with self._scorer(texts) as (scorer, _):
            search = LayerSearch(scorer, blocks, times, len(texts), run_ahead=self.run_ahead)
            if "harm" not in study.known:
                study.keep(harm=await search.harm(self.bars.counter("blocks alone", len(blocks.names))))
            tried = await search.run(study, warm_starts(study.known["harm"]), self.trials, self._on_trial)
            return tried, await search.random_sets(tried[0].skip, RANDOM_SETS, seed=0)

    async def _confirm(self, blocks: Blocks, sets: Sequence[Judged], texts: Sequence[RecordedText]) -> list[Confirmed]:
        async with open_pair(self.models, with_draft=False, capacity=self.capacity, log=self.log) as pair:
            whole = of_length(self._requests(pair.tokenizer), [len(text.answer) for text in texts])
            requests, drafters = self._half(whole, 1), self._drafters(pair, blocks)
            on_turn = self.bars.counter("sets are run", len(sets) * VARIANTS * len(requests) * self.repeats)
            return [await drafters.confirm(judged, requests, self.repeats, on_turn) for judged in sets]

    def _drafters(self, pair: Pair, blocks: Blocks) -> SkipDrafters:
        return SkipDrafters(pair, self.models, self.capacity, blocks, self.study.subject["model"], self.log)

    def _requests(self, tokenizer: TextTokenizer | None) -> list[GenerationRequest]:
        """Return all requests; blocks are judged by agreement, so none of them rejects."""
        requests = seeded([with_token_ids(prompt, tokenizer) for prompt in self.prompts])
        return [replace(one, verification=Verification.SHARED_NOISE) for one in requests]

    def _half(self, all_of_them: Sequence[T], half: int) -> list[T]:
        """Return the half for the search (0), or for the final runs (1)."""
        return list(all_of_them) if len(all_of_them) < FEW_PROMPTS else list(all_of_them[half::2])

    @asynccontextmanager
    async def _scorer(self, texts: Sequence[RecordedText]) -> AsyncIterator[tuple[BlockScorer, Blocks]]:
        cores = cores_for_pinning() if self.models.pin else None
        scorer = BlockScorer(self.models, cores[1] if cores else None)
        try:
            yield scorer, await scorer.start(texts)
        finally:
            await scorer.stop()

    def _on_trial(self, done: int, best: Judged | None) -> None:
        word = "" if best is None else f"best {best.ratio:.2f} ×, agreement {best.prediction.agreement:.0%}"
        self.bars.show("sets are tried", min(done, self.trials), self.trials, word)


def describe(models: ModelOptions, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Return the subject of a study; a study of another subject is not resumed."""
    service = models.service
    return {
        "model": fingerprint(models.target_model or ""),
        "prompts": hashlib.sha256(repr(prompts).encode()).hexdigest(),
        "temperatures": sorted({prompt.request.sampling.temperature for prompt in prompts}),
        "run-ahead": service.value("run_ahead"),
        "device and dtype": f"{service.value('device')} {service.value('dtype')}",
    }
