"""The result of a proof: one finding for each check, and the verdict over all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


class CheckResult(StrEnum):
    """What a check showed."""

    PASS = "pass"
    NEAR_TIE = "near tie"
    UNDECIDED = "undecided"
    FAIL = "fail"
    SKIPPED = "skipped"


_STYLES = {
    CheckResult.PASS: "green",
    CheckResult.NEAR_TIE: "green",
    CheckResult.UNDECIDED: "yellow",
    CheckResult.FAIL: "bold red",
    CheckResult.SKIPPED: "dim",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``texts`` and ``equal`` count texts that must be the target's own, 0 where a law is tested."""

    name: str
    outcome: CheckResult
    message: str
    details: tuple[str, ...] = ()
    texts: int = 0
    equal: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_object(self) -> dict[str, Any]:
        """Return every figure, as ``--json`` writes it."""
        words = {"name": self.name, "outcome": str(self.outcome), "message": self.message}
        return {**words, "details": list(self.details), **self.figures}


@dataclass(frozen=True, slots=True)
class Proof:
    """All checks of one pair; ``about`` names the pair and the size of the proof."""

    about: Mapping[str, Any]
    checks: Sequence[Check]

    @property
    def holds(self) -> bool:
        """Whether no check failed and none is undecided. Near ties are within what is promised."""
        return not self._of(CheckResult.FAIL, CheckResult.UNDECIDED)

    def _of(self, *outcomes: CheckResult) -> list[str]:
        return [check.name for check in self.checks if check.outcome in outcomes]

    @property
    def verdict(self) -> str:
        """Return one or two sentences."""
        texts, equal = (sum(getattr(check, name) for check in self.checks) for name in ("texts", "equal"))
        counted = f"{equal} of {texts} texts are exactly what the target alone writes"
        if failed := self._of(CheckResult.FAIL):
            return f"NOT lossless: {', '.join(failed)} failed; {counted}."
        if undecided := self._of(CheckResult.UNDECIDED):
            return f"Not proved: {', '.join(undecided)} could not be decided; {counted}."
        parted = f"; the other {texts - equal} part from it at near ties only" if equal < texts else ""
        return f"No difference found: {counted}{parted}, and no test tells rejection's law from the target's."

    def to_object(self) -> dict[str, Any]:
        """Return every figure, as ``--json`` writes it."""
        checks = [check.to_object() for check in self.checks]
        return {"lossless": self.holds, "verdict": self.verdict, **self.about, "checks": checks}

    def print(self, console: Console) -> None:
        """Print the checks as a table, and the verdict under it."""
        pair = "target {target}, draft {draft}, {dtype}".format_map(self.about)
        console.print(Text(pair, "dim"), soft_wrap=True)
        table = Table(show_header=False, box=None, padding=(0, 1))
        for no_wrap in (True, True, False):
            table.add_column(no_wrap=no_wrap, overflow="fold")
        for check in self.checks:
            mark = Text(check.outcome.upper(), _STYLES[check.outcome])
            table.add_row(mark, check.name, Text("\n→ ".join([check.message, *check.details])))
        console.print(table)
        console.print(Text(self.verdict, "bold green" if self.holds else "bold red"), soft_wrap=True)
