"""The flags of ``compare-gates``: what is compared, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.policy.gates import AUTO_GAMMA, DEFAULT_THRESHOLD, FIXED_GAMMA, Gate
from specgate.errors import InvalidArgument
from specgate.types import MAX_GAMMA, Verification, check_range
from specgate_lab.gate_choice import AUTO_GATE, TARGET_ALONE, GateChoice, gated_choices
from specgate_lab.gates.cases import Case, DraftKind
from specgate_lab.options import MAX_CONCURRENCY, names_of, numbers_of

MAX_BLOCKS = 10_000
_of_cases = partial(typer.Option, rich_help_panel="Cases")
_of_choices = partial(typer.Option, rich_help_panel="Fixed choices; the target alone is always one")
_of_size = partial(typer.Option, rich_help_panel="Size")


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Cases are all combinations of drafts, temperatures and numbers of clients.

    Raises:
        InvalidArgument: a value is outside its range; the message names the flag.
    """

    drafts: Annotated[
        str,
        _of_cases(
            metavar="KIND,...",
            help="good: the draft as it is; random: its weights shuffled.",
        ),
    ] = "good,random"
    temperatures: Annotated[str, _of_cases(metavar="T,T,...", help="Sampling temperatures; 0 is greedy.")] = "0,0.7,1"
    concurrency: Annotated[str, _of_cases(metavar="N,N,...", help="Numbers of clients.")] = "1,8"
    verification: Annotated[
        Verification, _of_cases(help="How draft tokens are accepted. Both keep the target's distribution.")
    ] = Verification.SHARED_NOISE
    gammas: Annotated[str, _of_choices(metavar="N,N,...", help="Values of γ for the gate none; '' measures none.")] = (
        ",".join(map(str, range(1, AUTO_GAMMA + 1)))
    )
    thresholds: Annotated[
        str, _of_choices(metavar="P,P,...", help="Thresholds of target_confidence; '' measures none.")
    ] = "0.3,0.5,0.7"
    draft_thresholds: Annotated[
        str,
        _of_choices(
            metavar="P,P,...", help="Thresholds of draft_confidence, alone and with each of --thresholds; '' as there."
        ),
    ] = str(DEFAULT_THRESHOLD[Gate.DRAFT_CONFIDENCE])
    gated_gammas: Annotated[str, _of_choices(metavar="N,N,...", help="Values of γ for the gates with a threshold.")] = (
        str(FIXED_GAMMA)
    )
    blocks: Annotated[
        int, _of_size(metavar="N", help="Measured blocks per choice: one request, or two per client.")
    ] = 24
    warm_up: Annotated[
        int,
        _of_size(metavar="N", help="Blocks before the measurement: auto runs all of them, a fixed gate the last one."),
    ] = 8
    max_tokens: Annotated[int, _of_size(metavar="N", help="Tokens per request.")] = 128
    traces: Annotated[
        int,
        _of_size(metavar="N", help="Texts to record into --out for each draft and temperature, and to replay."),
    ] = 0
    best: Annotated[
        int,
        _of_size(
            metavar="N",
            help="Fixed choices to measure of each case: the best ones of its replay, in place of the others.",
        ),
    ] = 0
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of gates.json, gates.md and, with matplotlib, rates.png."),
    ] = None

    def __post_init__(self) -> None:
        check_range("blocks", self.blocks, 1, MAX_BLOCKS)
        check_range("warm_up", self.warm_up, 0, MAX_BLOCKS)
        check_range("max_tokens", self.max_tokens, 2, 1 << 20)
        check_range("traces", self.traces, 0, MAX_BLOCKS)
        if self.traces and self.out is None:
            raise InvalidArgument("traces", f"{self.traces} are recorded into the folder that --out names")
        check_range("best", self.best, 0, MAX_BLOCKS)
        if self.best and self.traces < max(self.clients):
            raise InvalidArgument(
                "traces", f"{self.traces} are too few to replay {max(self.clients)} clients, for --best"
            )
        if not (self.cases and self.choices):
            raise InvalidArgument("temperatures", "no case is left; give a temperature and a number of clients")

    @property
    def kinds(self) -> tuple[DraftKind, ...]:
        return tuple(map(DraftKind, names_of("drafts", self.drafts, DraftKind)))

    @property
    def clients(self) -> tuple[int, ...]:
        return numbers_of("concurrency", self.concurrency or None, int, 1, MAX_CONCURRENCY)

    @property
    def cases(self) -> list[Case]:
        """All cases, those of a draft together."""
        temperatures = numbers_of("temperatures", self.temperatures or None, float, 0.0, 100.0)
        return [
            Case(kind, temperature, num) for kind in self.kinds for num in self.clients for temperature in temperatures
        ]

    @property
    def choices(self) -> list[GateChoice]:
        """The target alone, ``none`` with each γ, ``gated_choices``, and ``auto``."""
        gammas = numbers_of("gammas", self.gammas or None, int, 1, MAX_GAMMA)
        gated_gammas = numbers_of("gated_gammas", self.gated_gammas or None, int, 1, MAX_GAMMA)
        thresholds = numbers_of("thresholds", self.thresholds or None, float, 0.0, 1.0)
        draft_thresholds = numbers_of("draft_thresholds", self.draft_thresholds or None, float, 0.0, 1.0)
        return [
            TARGET_ALONE,
            *(GateChoice(Gate.NONE, gamma) for gamma in gammas),
            *gated_choices(gated_gammas, thresholds, draft_thresholds),
            AUTO_GATE,
        ]

    def choices_of(self, ranked: Sequence[GateChoice]) -> list[GateChoice]:
        """Return what is measured of a case whose replay ranked the fixed choices so; () if there was none."""
        if not (self.best and ranked):
            return self.choices
        return [TARGET_ALONE, *[one for one in ranked if one != TARGET_ALONE][: self.best], AUTO_GATE]
