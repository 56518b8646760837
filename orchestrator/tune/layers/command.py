"""``orchestrator tune layers``: Bayesian search for blocks of the target to leave out, so that it drafts for itself."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orchestrator.bench.reports.provenance import provenance
from orchestrator.bench.workload.prompts import BENCH_PROMPTS
from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import Capacity, Pair, capacity_for, open_pair
from orchestrator.local.local_services import cores_for_pinning
from orchestrator.terminal.model_options import ModelOptions, check_model
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, read_prompts, with_token_ids
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.terminal.results import write_json
from orchestrator.tune.layers.blocks import Blocks, warm_starts
from orchestrator.tune.layers.confirm import WAYS, Confirmed, confirm
from orchestrator.tune.layers.costs import measure_times, probes
from orchestrator.tune.layers.drafters import SkipDrafters, write_skip
from orchestrator.tune.layers.options import LayerOptions, check_models
from orchestrator.tune.layers.plots import draw_search
from orchestrator.tune.layers.predict import MeasuredTimes
from orchestrator.tune.layers.record import RecordedText, check_lengths, record_texts, sampling_object
from orchestrator.tune.layers.report import SearchReport, skip_of
from orchestrator.tune.layers.scorer import BlockScorer
from orchestrator.tune.layers.search import LayerSearch, RandomSets
from orchestrator.tune.layers.study import Judged, LayerStudy, check_optuna
from orchestrator.tune.progress import StageBars
from orchestrator.tune.versus_target import seeded
from specgate.errors import InvalidArgument
from specgate.weights import fingerprint

FEW_PROMPTS = 4
"""With fewer, no prompt can be spared to judge what others found."""


@takes_groups
def tune_layers(
    models: ModelOptions,
    sampling: SamplingOptions,
    options: LayerOptions,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON lines.", show_default="short Python beginnings")
    ] = None,
) -> None:
    """Search for blocks of the target to leave out, so that it drafts for itself; say so where that brings nothing.

    Every second prompt is for the search, the others are for running what it found.
    """
    check_optuna()
    check_models(models)
    check_model("target", models.target)
    request = request_for(models, DraftingOptions(), sampling)
    todo = read_prompts(prompts, request) if prompts else [Prompt(request, text) for text in BENCH_PROMPTS]
    options.prepare()
    log = Console(stderr=True)
    with StageBars(log) as bars:
        search = _Search(models, options, todo, bars, log)
        report = asyncio.run(search.run())
    _write(options, report, search.blocks, log)
    for line in report.words():
        output_console().print(line, highlight=False, markup=False, soft_wrap=True)


def _write(options: LayerOptions, report: SearchReport, blocks: Blocks, log: Console) -> None:
    files = [options.out / "result.json", options.out / "skip.json"]
    write_json(files[0], {"provenance": provenance(), **report.to_object()}, "out")
    try:
        write_skip(files[1], skip_of(report), blocks, report.subject["model"], measured=report.of_skip_file())
    except OSError as error:
        raise InvalidArgument("out", f"{files[1]} cannot be written: {error.strerror}") from error
    if find_spec("matplotlib") is not None:
        files.append(options.out / "search.png")
        draw_search(files[-1], report)
    told = ", ".join(map(str, files))
    log.print(f"written: {told}", style="dim", markup=False, highlight=False, soft_wrap=True)


class _Search:
    """One run of the command: what is measured first, the trials, what is run at the end."""

    def __init__(
        self,
        models: ModelOptions,
        options: LayerOptions,
        prompts: Sequence[Prompt],
        bars: StageBars,
        log: Console,
    ) -> None:
        self._models = models
        self._options = options
        self._prompts = prompts
        self._bars = bars
        self._log = log
        self._run_ahead = bool(models.service.value("run_ahead"))
        self._capacity: Capacity = capacity_for(prompts, 1)
        self._subject = self._describe()
        self._study = LayerStudy(options.study_file, self._subject, seed=0)
        self.blocks = Blocks(0, True)

    async def run(self) -> SearchReport:
        """Go on where the study is, and return what came of it."""
        if "times" not in self._study.known:
            await self._measure()
        known = self._study.known
        self.blocks, times = Blocks(*known["blocks"]), MeasuredTimes.of_object(known["times"])
        best, random = await self._try_sets(times, [RecordedText(**text) for text in known["texts"]])
        confirmed = await self._confirm([*best, random.middle(run_ahead=self._run_ahead)])
        finalists = sorted((one.finalist for one in confirmed[:-1]), key=lambda one: -one.best.ratio)
        return SearchReport(
            {**self._subject, **{name: known[name] for name in ("device", "dtype", "context_tokens")}},
            len(self.blocks.names),
            times,
            self._study.known["harm"],
            self._study.judged(self.blocks),
            random,
            finalists,
            confirmed[-1].finalist,
            sorted({name for one in confirmed for name in one.texts_differ}),
            self._run_ahead,
        )

    def _describe(self) -> dict[str, Any]:
        """Return what a study is of; one of something else is not gone on with."""
        service = self._models.service
        told = [[one.text, one.token_ids, one.request.max_tokens, one.request.seed] for one in self._prompts]
        laws = [sampling_object(one.request.sampling) for one in self._prompts]
        return {
            "model": fingerprint(self._models.target_model or ""),
            "prompts": hashlib.sha256(json.dumps(told).encode()).hexdigest(),
            "temperatures": sorted({one.request.sampling.temperature for one in self._prompts}),
            "sampling": hashlib.sha256(json.dumps(laws, sort_keys=True).encode()).hexdigest(),
            "run-ahead": service.value("run_ahead"),
            "device and dtype": f"{service.value('device')} {service.value('dtype')}",
        }

    async def _measure(self) -> None:
        """Keep what every trial needs: the target's texts, and what things take."""
        scorer = self._scorer()
        try:
            blocks = await scorer.start([])
        finally:
            await scorer.stop()
        async with open_pair(self._models, with_draft=False, capacity=self._capacity, log=self._log) as pair:
            info, requests = pair.orchestrator.target_info, self._requests(pair.tokenizer, 0)
            check_lengths(self._requests(pair.tokenizer, None), info.context_length)
            texts = self._bars.counter("target writes", len(requests))
            recording = await record_texts(pair.orchestrator, requests, texts)
            on_probe = self._bars.counter("drafts are timed", len(probes(blocks)))
            times = await measure_times(self._drafters(pair, blocks), requests, recording.alone_us, on_probe)
        self._study.keep(
            blocks=blocks,
            texts=[text.to_object() for text in recording.texts],
            times=times.to_object(),
            device=info.device,
            dtype=info.dtype,
            context_tokens=max(len(text.prompt) + len(text.answer) for text in recording.texts),
        )

    async def _try_sets(self, times: MeasuredTimes, texts: Sequence[RecordedText]) -> tuple[list[Judged], RandomSets]:
        """Return the finalists, the best one first, and random sets of as many blocks."""
        study, blocks, scorer, options = self._study, self.blocks, self._scorer(), self._options
        search = LayerSearch(scorer, blocks, times, len(texts), run_ahead=self._run_ahead)
        try:
            await scorer.start(texts)
            if "harm" not in study.known:
                study.keep(harm=await search.harm(self._bars.counter("blocks alone", len(blocks.names))))
            study.begin_with(blocks, warm_starts(study.known["harm"]))
            await search.run(study, options.trials, self._on_trial)
            by_ratio = sorted(study.judged(blocks), key=lambda one: -one.prediction(run_ahead=self._run_ahead).ratio)
            random = await search.random_sets(by_ratio[0].skip, options.random_sets, seed=0)
        finally:
            await scorer.stop()
        return by_ratio[: options.finalists], random

    async def _confirm(self, sets: Sequence[Judged]) -> list[Confirmed]:
        options = self._options
        async with open_pair(self._models, with_draft=False, capacity=self._capacity, log=self._log) as pair:
            requests, drafters = self._requests(pair.tokenizer, 1), self._drafters(pair, self.blocks)
            on_turn = self._bars.counter("sets are run", len(sets) * WAYS * len(requests) * options.repeats)
            return [await confirm(drafters, judged, requests, options.repeats, on_turn) for judged in sets]

    def _drafters(self, pair: Pair, blocks: Blocks) -> SkipDrafters:
        return SkipDrafters(pair, self._models, self._capacity, blocks, self._subject["model"], self._log)

    def _requests(self, tokenizer: Any, half: int | None) -> list[GenerationRequest]:
        """Return the requests for the search (0), those for what it found (1), or all."""
        requests = seeded([with_token_ids(prompt, tokenizer) for prompt in self._prompts])
        return requests if half is None or len(requests) < FEW_PROMPTS else requests[half::2]

    def _scorer(self) -> BlockScorer:
        cores = cores_for_pinning() if self._models.pin else None
        return BlockScorer(self._models, cores[1] if cores else None)

    def _on_trial(self, done: int, best: Judged | None) -> None:
        word = ""
        if best is not None:
            found = best.prediction(run_ahead=self._run_ahead)
            word = f"best {found.ratio:.2f} ×, {best.skip.size} left out, agreement {found.agreement:.0%}"
        self._bars.show("sets are tried", min(done, self._options.trials), self._options.trials, word)
