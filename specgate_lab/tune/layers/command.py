"""``orchestrator tune layers``: Bayesian search for blocks of the target to leave out, so that it drafts for itself."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.local.pair_settings import check_model
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from specgate.errors import InvalidArgument
from specgate.types import check_range
from specgate_lab.options import PromptOptions, make_folder
from specgate_lab.progress import StageBars, print_files
from specgate_lab.report import ResultsFile, can_draw
from specgate_lab.tune.layers.drafters import write_skip
from specgate_lab.tune.layers.plots import draw_search
from specgate_lab.tune.layers.report import SearchReport
from specgate_lab.tune.layers.run import Search, describe
from specgate_lab.tune.layers.study import check_optuna, open_study
from specgate_lab.tune.recording import few_enough


@takes_groups
def tune_layers(
    models: ModelOptions,
    sampling: SamplingOptions,
    prompts: PromptOptions,
    trials: Annotated[int, typer.Option(metavar="N", help="Sets of blocks to try in the search.")] = 60,
    repeats: Annotated[int, typer.Option(help="Runs of each finalist.")] = 3,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder of skip.json, result.json, search.png and study.json, from which the same command resumes.",
        ),
    ] = Path("tune-layers"),
) -> None:
    """Search for blocks that the target can leave out to draft for itself; report if none pays.

    Every second prompt is used by the search, the others by the final runs.
    """
    check_range("trials", trials, 1, 100_000)
    check_range("repeats", repeats, 1, 1000)
    check_optuna()
    models.check_has_services("tune layers")
    _check_models(models)
    log = Console(stderr=True)
    todo = few_enough(prompts.read(request_for(models, DraftingOptions(), sampling)), log)
    make_folder("out", out)
    file, skip_file = ResultsFile(out / "result.json", "out"), out / "skip.json"
    subject = describe(models, todo)
    with StageBars(log) as bars, open_study(out / "study.json", subject, seed=0) as study:
        search = Search(models, trials, repeats, todo, study, bars, log)
        report = asyncio.run(search.run(skip_file))
    # Printed first: a file may fail.
    for line in report.words():
        output_console().print(line, highlight=False, markup=False, soft_wrap=True)
    file.write(report.to_object())
    _write(out, report, log)


def _check_models(models: ModelOptions) -> None:
    """Raise InvalidArgument where services or sources are named that this command starts by itself."""
    if models.verifier or models.drafter:
        raise InvalidArgument("verifier" if models.verifier else "drafter", "is started here; give --target alone")
    for flag, given in (("draft", models.draft), ("method", models.service.given.get("method"))):
        if given is not None:
            raise InvalidArgument(flag, f"{str(given)!r} is not for a search of the target's own blocks")
    check_model("target", models.target)


def _write(folder: Path, report: SearchReport, log: Console) -> None:
    skip, files = report.best.judged.skip, [folder / "result.json", report.skip_file]
    write_skip(files[1], skip, report.blocks, report.subject["model"], measured=report.of_skip_file())
    if can_draw():
        files.append(folder / "search.png")
        draw_search(files[-1], report)
    print_files(log, files)
