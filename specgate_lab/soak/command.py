"""``orchestrator bench --soak``: the served system for minutes or hours, under a mixed load."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.render import output_console
from specgate.errors import InternalError, InvalidArgument, ServiceUnavailable
from specgate.types import check_range
from specgate_lab.options import make_folder
from specgate_lab.progress import counting_bar
from specgate_lab.report import ResultsFile, check_can_draw, results_path
from specgate_lab.served_child import ServedEndpoints, served, settings_for
from specgate_lab.soak.clients import Tally, client
from specgate_lab.soak.replicas import Held, are_batch_invariant, replicas_under
from specgate_lab.soak.samples import KILL_EVERY_S, SAMPLE_EVERY_S, Log, draw_soak, keep_sampling, kill_now_and_then

MIN_MINUTES, MAX_MINUTES = 0.1, 7 * 24 * 60.0
NUM_CLIENTS = 6
SETTLES_WITHIN_S = 60.0
"""A replica that was killed last is back by then too."""
NOTHING = Held(replicas=3)
"""At the end two verifiers and a drafter report that they hold nothing."""
MOST_LOST = 0.01
"""Of the answers. A second verifier goes on with what a killed one began; on a busy machine the next kill may come
before the first one is back."""
MAX_SAMPLES = 240
"""Of a file that is to be kept."""
_SETTINGS = {"verifier.replicas": 2, "verifier.max_sessions": 8, "drafter.max_sessions": 16}
_of_soak = partial(typer.Option, rich_help_panel="Soak")


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """How long, and where the figures go.

    Raises:
        InvalidArgument: the time is outside its range.
    """

    soak: Annotated[
        float | None,
        _of_soak(
            metavar="MINUTES",
            help="Serve the pair on Ray under mixed load with kills; compare texts, and sample memory and sessions.",
        ),
    ] = None
    out: Annotated[
        Path | None,
        _of_soak(metavar="FOLDER", help="Folder of soak.json and soak.png.", show_default="one of its own"),
    ] = None

    def __post_init__(self) -> None:
        if self.soak is not None:
            check_range("soak", self.soak, MIN_MINUTES, MAX_MINUTES)
        elif self.out is not None:
            raise InvalidArgument("out", "is for --soak, which is not given")

    @property
    def is_wanted(self) -> bool:
        return self.soak is not None

    def folder(self) -> Path:
        """Make the folder and return it. Raises InvalidArgument where it cannot be made, or nothing can be drawn."""
        usual = results_path("soak")
        folder = self.out or (usual.with_suffix("") if usual else None)
        if folder is None:
            raise InvalidArgument("out", "is needed here: there is no folder for results")
        check_can_draw("soak")
        make_folder("out", folder)
        return folder


def run_soak(models: ModelOptions, options: SoakOptions, kill_every_s: float = KILL_EVERY_S) -> None:
    """Serve and load for as long as it is asked, write figures and picture, and print the result.

    Raises:
        InvalidArgument: named services are not ours to kill; or the folder cannot be made.
        ServiceUnavailable: Ray is missing, or the system did not start.
        InternalError: see ``check_soak``. All is written before.
    """
    if models.verifier or models.drafter:
        raise InvalidArgument("soak", "starts its own services, and kills some; --verifier and --drafter name others'")
    folder = options.folder()
    if find_spec("ray") is None:
        raise ServiceUnavailable("a soak needs Ray: pip install 'specgate[ray]'")
    results, tally, log = ResultsFile(folder / "soak.json", "out"), Tally(), Log()
    try:
        asyncio.run(_soak(models, int((options.soak or 0.0) * 60), kill_every_s, tally, log))
    finally:
        # Also where it broke off: hours are not run again for nothing.
        if log.samples:
            _keep(folder, results, tally, log)
    check_soak(tally, log)


def check_soak(tally: Tally, log: Log) -> None:
    """Raise InternalError: a request failed, too many found no service, a text differed, or something is still held."""
    too_many = tally.lost.total() > MOST_LOST * (tally.whole + tally.left)
    if not tally.whole or tally.failed or too_many:
        told = f"{tally.failed.total()} requests failed, {tally.lost.total()} found no service"
        raise InternalError(f"{told}, {tally.whole} were answered: {dict(tally.failed + tally.lost)}")
    if tally.differing:
        raise InternalError(f"{len(tally.differing)} texts differed from the target's own: {tally.differing[0]}")
    if log.samples[-1].held != NOTHING:
        raise InternalError(f"when all clients had left, it was not seen that nothing is held: {log.samples[-1].held}")


async def _soak(models: ModelOptions, seconds: int, kill_every_s: float, tally: Tally, log: Log) -> None:
    # A thread for each client, and for the samples.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(NUM_CLIENTS + 4))
    console = Console(stderr=True)
    async with served(settings_for(models, _SETTINGS), lambda text: console.print(text, style="yellow")) as apis:
        replicas = await asyncio.to_thread(replicas_under, apis.pid)
        invariant = await are_batch_invariant(replicas)
        log.start_s = time.monotonic()
        work = [
            *(client(apis, seed, tally, batch_invariant=invariant) for seed in range(NUM_CLIENTS)),
            keep_sampling(log, apis.pid, tally, max(SAMPLE_EVERY_S, seconds / MAX_SAMPLES)),
            kill_now_and_then(log, apis.pid, kill_every_s),
        ]
        tasks = [asyncio.create_task(one) for one in work]
        with counting_bar(console, "soak, seconds", seconds) as on_second:
            for _ in range(seconds):
                await asyncio.sleep(1.0)
                on_second()
                # None of them ends by itself but by a failure.
                for task in tasks:
                    if task.done():
                        task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _settle(apis, tally, log)


async def _settle(apis: ServedEndpoints, tally: Tally, log: Log) -> None:
    """Take a last sample once nothing is held, or after a while."""
    give_up_at_s = log.now_s + SETTLES_WITHIN_S
    while await log.sample(apis.pid, tally) != NOTHING and log.now_s < give_up_at_s:  # noqa: ASYNC110
        await asyncio.sleep(0.5)


def _keep(folder: Path, results: ResultsFile, tally: Tally, log: Log) -> None:
    """Write figures and picture, and print the result."""
    row = _row(tally, log)
    texts = {"differing": tally.differing, "lost": dict(tally.lost), "failed": dict(tally.failed)}
    results.write({"rows": [{"name": "soak", **row}], **texts, **log.to_object()})
    draw_soak(folder / "soak.png", log, f"{row['minutes']:.0f} minutes, {tally.whole} whole answers")
    out = output_console()
    for name, value in (row | texts).items():
        shown = f"{value:.1f}" if isinstance(value, float) else value
        out.print(f"{name.replace('_', ' ')}: {shown}", markup=False, highlight=False, soft_wrap=True)
    out.print(f"results: {folder}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _row(tally: Tally, log: Log) -> dict[str, Any]:
    first, last = log.samples[0], log.samples[-1]
    before = {one.pid: one.rss_mb for one in first.processes}
    return {
        "minutes": last.at_s / 60,
        "answers": tally.whole,
        "clients_left": tally.left,
        "distinct": len(tally.requests),
        "tokens": tally.tokens,
        "compared_tokens": tally.compared_tokens,
        "num_differing": len(tally.differing),
        "near_tie_texts": tally.near_ties,
        "num_lost": tally.lost.total(),
        "num_failed": tally.failed.total(),
        "kills": len(log.kills),
        "still_held": f"{last.held.sessions} sessions, {last.held.kv_tokens} KV tokens",
        # Of those that lived through all of it.
        "grown_mb": sum(one.rss_mb - before[one.pid] for one in last.processes if one.pid in before),
    }
