"""``orchestrator tune layers``: Bayesian search for blocks of the target to leave out, so that it drafts for itself."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.local.cores import cores_for_pinning
from orchestrator.local.launch import Capacity, Pair, capacity_for, open_pair
from orchestrator.local.pair_settings import check_model
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, with_token_ids
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.terminal.results import write_json
from specgate.types import Verification
from specgate.weights import fingerprint
from specgate_lab.provenance import provenance
from specgate_lab.report import can_draw
from specgate_lab.tune.layers.blocks import Blocks, warm_starts
from specgate_lab.tune.layers.confirm import WAYS, Confirmed, confirm
from specgate_lab.tune.layers.costs import measure_times, probes
from specgate_lab.tune.layers.drafters import SkipDrafters, write_skip
from specgate_lab.tune.layers.options import LayerOptions, check_blocks, check_models
from specgate_lab.tune.layers.plots import draw_search
from specgate_lab.tune.layers.predict import MeasuredTimes
from specgate_lab.tune.layers.record import RecordedText, check_lengths, record_texts, sampling_object
from specgate_lab.tune.layers.report import SearchReport
from specgate_lab.tune.layers.scorer import BlockScorer
from specgate_lab.tune.layers.search import LayerSearch, RandomSets
from specgate_lab.tune.layers.study import Judged, LayerStudy, check_optuna, open_study
from specgate_lab.tune.progress import StageBars, tell_files
from specgate_lab.tune.prompts import chosen_prompts
from specgate_lab.tune.versus_target import of_length, seeded

T = TypeVar("T")
FEW_PROMPTS = 4
"""With fewer, no prompt can be spared to judge what others found."""


@takes_groups
def tune_layers(
    models: ModelOptions,
    sampling: SamplingOptions,
    options: LayerOptions,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of prompts: JSON lines with 'prompt' or 'token_ids'.",
            show_default="short Python beginnings",
        ),
    ] = None,
) -> None:
    """Search for blocks that the target can leave out to draft for itself; report if none pays.

    Every second prompt is used by the search, the others by the final runs.
    """
    check_optuna()
    models.check_has_services("tune layers")
    check_models(models)
    check_model("target", models.target)
    log = Console(stderr=True)
    todo = chosen_prompts(prompts, request_for(models, DraftingOptions(), sampling), log)
    options.prepare()
    subject = describe(models, todo)
    with StageBars(log) as bars, open_study(options.study_file, subject, seed=0) as study:
        report = asyncio.run(_Search(models, options, todo, study, subject, bars, log).run())
    for line in report.words():
        output_console().print(line, highlight=False, markup=False, soft_wrap=True)
    # What cannot be written has been told.
    _write(options, report, log)


def _write(options: LayerOptions, report: SearchReport, log: Console) -> None:
    files = [options.out / "result.json", options.out / "skip.json"]
    write_json(files[0], {"provenance": provenance(), **report.to_object()}, "out")
    skip, measured = report.best.judged.skip, report.of_skip_file()
    write_skip(files[1], skip, report.blocks, report.subject["model"], measured=measured)
    if can_draw():
        files.append(options.out / "search.png")
        draw_search(files[-1], report)
    tell_files(log, files)


class _Search:
    """One run of the command: what is measured first, the trials, what is run at the end."""

    def __init__(
        self,
        models: ModelOptions,
        options: LayerOptions,
        prompts: Sequence[Prompt],
        study: LayerStudy,
        subject: dict[str, Any],
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
        self._subject = subject
        self._study = study

    async def run(self) -> SearchReport:
        """Go on where the study is, and return what came of it."""
        if "times" not in self._study.known:
            await self._measure()
        known = self._study.known
        blocks, times = Blocks(*known["blocks"]), MeasuredTimes.of_object(known["times"])
        texts = [RecordedText(**text) for text in known["texts"]]
        best, random = await self._try_sets(blocks, times, self._half(texts, 0))
        confirmed = await self._confirm(blocks, [*best, random.middle(run_ahead=self._run_ahead)], texts)
        return SearchReport(
            {**self._subject, **{name: known[name] for name in ("device", "dtype", "context_tokens")}},
            blocks,
            times,
            self._study.known["harm"],
            self._study.judged(blocks),
            random,
            sorted((one.finalist for one in confirmed[:-1]), key=lambda one: -one.best.ratio),
            confirmed[-1].finalist,
            sorted({name for one in confirmed for name in one.texts_differ}),
            self._run_ahead,
            self._options.out / "skip.json",
        )

    async def _measure(self) -> None:
        """Keep what every trial needs: the target's texts, and what things take."""
        scorer = self._scorer()
        try:
            blocks = await scorer.start([])
        finally:
            await scorer.stop()
        check_blocks(blocks)
        async with open_pair(self._models, with_draft=False, capacity=self._capacity, log=self._log) as pair:
            info, requests = pair.orchestrator.target_info, self._requests(pair.tokenizer)
            check_lengths(requests, info.context_length)
            on_text = self._bars.counter("target writes", len(requests))
            recording = await record_texts(pair.orchestrator, requests, on_text)
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

    async def _try_sets(
        self, blocks: Blocks, times: MeasuredTimes, texts: Sequence[RecordedText]
    ) -> tuple[list[Judged], RandomSets]:
        """Return the finalists, the best one first, and random sets of as many blocks."""
        study, scorer, options = self._study, self._scorer(), self._options
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

    async def _confirm(self, blocks: Blocks, sets: Sequence[Judged], texts: Sequence[RecordedText]) -> list[Confirmed]:
        options = self._options
        async with open_pair(self._models, with_draft=False, capacity=self._capacity, log=self._log) as pair:
            whole = of_length(self._requests(pair.tokenizer), [len(text.answer) for text in texts])
            requests, drafters = self._half(whole, 1), self._drafters(pair, blocks)
            on_turn = self._bars.counter("sets are run", len(sets) * WAYS * len(requests) * options.repeats)
            return [await confirm(drafters, judged, requests, options.repeats, on_turn) for judged in sets]

    def _drafters(self, pair: Pair, blocks: Blocks) -> SkipDrafters:
        return SkipDrafters(pair, self._models, self._capacity, blocks, self._subject["model"], self._log)

    def _requests(self, tokenizer: TextTokenizer | None) -> list[GenerationRequest]:
        """Return all requests; blocks are judged by agreement, so none of them rejects."""
        requests = seeded([with_token_ids(prompt, tokenizer) for prompt in self._prompts])
        return [replace(one, verification=Verification.SHARED_NOISE) for one in requests]

    def _half(self, all_of_them: Sequence[T], half: int) -> list[T]:
        """Return what is for the search (0), or for running what it found (1)."""
        return list(all_of_them) if len(all_of_them) < FEW_PROMPTS else list(all_of_them[half::2])

    def _scorer(self) -> BlockScorer:
        cores = cores_for_pinning() if self._models.pin else None
        return BlockScorer(self._models, cores[1] if cores else None)

    def _on_trial(self, done: int, best: Judged | None) -> None:
        word = ""
        if best is not None:
            found = best.prediction(run_ahead=self._run_ahead)
            word = f"best {found.ratio:.2f} ×, agreement {found.agreement:.0%}"
        self._bars.show("sets are tried", min(done, self._options.trials), self._options.trials, word)


def describe(models: ModelOptions, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Return what a study is of; one of something else is not gone on with."""
    service = models.service
    return {
        "model": fingerprint(models.target_model or ""),
        "prompts": _digest([_prompt_object(prompt) for prompt in prompts]),
        "sampling": _digest([sampling_object(prompt.request.sampling) for prompt in prompts]),
        "temperatures": sorted({prompt.request.sampling.temperature for prompt in prompts}),
        "run-ahead": service.value("run_ahead"),
        "device and dtype": f"{service.value('device')} {service.value('dtype')}",
    }


def _prompt_object(prompt: Prompt) -> list[Any]:
    """Return what a prompt asks for, its sampling aside."""
    request = prompt.request
    ends = [request.max_tokens, list(request.stop), sorted(request.stop_token_ids), request.ignore_eos]
    return [prompt.text, prompt.token_ids, request.seed, *ends]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
