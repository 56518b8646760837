"""``orchestrator calibrate``: how often a draft token is accepted, by the draft's and by the target's confidence."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.render import output_console
from specgate.errors import InvalidArgument
from specgate.types import SamplingParams, Verification, check_range
from specgate_lab.gates.calibration import JudgedToken, PairCalibration, judged_tokens
from specgate_lab.gates.calibration_report import draw_calibration, print_calibration
from specgate_lab.gates.traces import RECORDED_GAMMAS, record_text
from specgate_lab.options import PromptOptions, make_folder, numbers_of
from specgate_lab.progress import StageBars, print_files
from specgate_lab.report import ResultsFile, can_draw
from specgate_lab.timeline import Start
from specgate_lab.workload import full_requests


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """What is recorded, and where it goes.

    Raises:
        InvalidArgument: a value is outside its range; the message names the flag.
    """

    temperatures: Annotated[str, typer.Option(metavar="T,T,...", help="Sampling temperatures; 0 is greedy.")] = "0,1"
    verification: Annotated[
        Verification, typer.Option(help="How draft tokens are accepted. Both keep the target's distribution.")
    ] = Verification.SHARED_NOISE
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of each answer.")] = 128
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of calibration.json and, with matplotlib, calibration.png.")
    ] = Path("calibration")

    def __post_init__(self) -> None:
        check_range("max_tokens", self.max_tokens, 2, 1 << 20)
        numbers_of("temperatures", self.temperatures, float, 0.0, 100.0)


@takes_groups
def calibrate(models: ModelOptions, options: CalibrateOptions, prompts: PromptOptions) -> None:
    """Show how often a draft token is accepted, by the draft's probability of it and by the target's confidence.

    The draft's is that of the token itself, the target's that of the token before it.
    """
    models.check_has_services("calibrate")
    request = GenerationRequest(
        (), SamplingParams(), max_tokens=options.max_tokens, seed=0, verification=options.verification
    )
    todo = prompts.read(request)
    make_folder("out", options.out)
    file = ResultsFile(options.out / "calibration.json", "out")
    log = Console(stderr=True)
    found = asyncio.run(_record(models, options, todo, log))
    # Printed first: a file may fail.
    print_calibration(output_console(), found)
    file.write({"verification": str(options.verification), "temperatures": [one.to_object() for one in found]})
    files = [file.path]
    if can_draw():
        files.append(draw_calibration(options.out / "calibration.png", found))
    print_files(log, files)


async def _record(
    models: ModelOptions, options: CalibrateOptions, prompts: Sequence[Prompt], log: Console
) -> list[PairCalibration]:
    temperatures = numbers_of("temperatures", options.temperatures, float, 0.0, 100.0)
    capacity = capacity_for(prompts, 1)
    async with open_pair(models, with_draft=True, capacity=capacity, log=log) as pair:
        requests = full_requests(prompts, pair.tokenizer)
        with StageBars(log) as bars:
            return [await _calibration(pair.orchestrator.generate, one, requests, bars) for one in temperatures]


async def _calibration(
    start: Start, temperature: float, requests: Sequence[GenerationRequest], bars: StageBars
) -> PairCalibration:
    on_text, tokens = bars.counter(f"temperature {temperature:g}", len(requests)), list[JudgedToken]()
    for number, request in enumerate(requests):
        sampling = replace(request.sampling, temperature=temperature)
        # Each prompt has noise of its own.
        text = await record_text(start, replace(request, sampling=sampling, seed=(request.seed or 0) + number))
        tokens += list(judged_tokens(text, RECORDED_GAMMAS[0])) if text is not None else []
        on_text()
    if not tokens:
        raise InvalidArgument("draft", f"says no probability of a judged token at temperature {temperature:g}")
    return PairCalibration.of(temperature, tokens)
