"""What a step is, what it is given, and what becomes of it."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

Range = tuple[float, float]
"""The least and the most that is expected of a figure."""
Emit = Callable[[dict[str, Any]], None]
"""Sends one event from a step's process to the one that runs the day."""


class Status(StrEnum):
    """How a step ended."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"


class CheckFailed(Exception):
    """The step ran, and what it checks does not hold. The text is the reason, for a person."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        target: "module:function"; the function takes a ``Context`` and returns the one most telling figure.
        limit_s: the step is ended when it takes longer.
        estimate_s: what it should take on an H100. It is not begun when less is left.
        argument: handed to the function.
    """

    name: str
    about: str
    target: str
    limit_s: float
    estimate_s: float = 0.0
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """How a step ended; ``rows`` are its figures, also those that it had when it was ended."""

    name: str
    status: Status
    seconds: float
    told: str
    rows: tuple[dict[str, Any], ...] = ()
    last_log_lines: tuple[str, ...] = ()

    def to_object(self) -> dict[str, Any]:
        """Return it as ``gpu_day.json`` has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Where:
    """On what the steps run.

    Attributes:
        dry: tiny models on the CPU.
        scratch: a folder that all steps share, removed at the end.
    """

    dry: bool
    scratch: Path
    root: Path

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda:0"

    @property
    def dtype(self) -> str:
        """The fast number format of the device."""
        return "float32" if self.dry else "bfloat16"


@dataclass(frozen=True, slots=True)
class Context:
    """What a step's function is given."""

    where: Where
    argument: str
    limit_s: float
    emit: Emit = print
    start_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds until the step is ended from outside."""
        return self.start_s + self.limit_s - time.monotonic()

    def progress(self, text: str) -> None:
        """Tell a person what is going on."""
        self.emit({"progress": text})

    def row(self, **figures: Any) -> None:
        """Keep figures, whatever happens to the step later, and show them."""
        self.emit({"row": figures})

    def compare(self, figure: str, value: float, expected: Range) -> None:
        """Keep a figure beside what is expected of it, see ``estimates``, and its ratio to that: 1 is within."""
        nearest = min(max(value, expected[0]), expected[1])
        of_expected = 1.0 if value == nearest else value / nearest
        self.row(figure=figure, value=round(value, 3), expected=list(expected), of_expected=round(of_expected, 3))

    def to_json(self) -> str:
        """Return it for the step's process."""
        paths = {"scratch": str(self.where.scratch), "root": str(self.where.root), "dry": self.where.dry}
        return json.dumps({"where": paths, "argument": self.argument, "limit_s": self.limit_s})

    @classmethod
    def from_json(cls, text: str, emit: Emit) -> Self:
        """Return what ``to_json`` wrote."""
        read = json.loads(text)
        where = read["where"]
        paths = Where(where["dry"], Path(where["scratch"]), Path(where["root"]))
        return cls(paths, read["argument"], read["limit_s"], emit)
