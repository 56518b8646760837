"""The doctor's findings: a status, a sentence and advice."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table


class Status(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


_MARKS = {Status.OK: "[green]✓[/]", Status.WARNING: "[yellow]![/]", Status.PROBLEM: "[red]✗[/]"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check. ``subject`` is target, draft, pair, machine, or the service that listens."""

    subject: str
    check: str
    status: Status
    message: str
    advice: str = ""

    def to_object(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class FindingsReport:
    """All findings."""

    findings: Sequence[Finding]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong; warnings are allowed."""
        return all(finding.status is not Status.PROBLEM for finding in self.findings)

    def to_object(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it."""
        return {"healthy": self.healthy, "findings": [finding.to_object() for finding in self.findings]}

    def print(self, console: Console) -> None:
        """Print one line a finding, with a tick or a cross, and a sentence at the end."""
        table = Table(show_header=False, box=None, padding=(0, 1))
        table.add_column(width=1)
        for _ in range(2):
            table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for finding in self.findings:
            message = finding.message if not finding.advice else f"{finding.message}\n→ {finding.advice}"
            table.add_row(_MARKS[finding.status], finding.subject, finding.check, _plain(message))
        console.print(table)
        console.print(self._verdict())

    def _verdict(self) -> str:
        count = {status: sum(one.status is status for one in self.findings) for status in Status}
        if not self.healthy:
            return f"[bold red]{count[Status.PROBLEM]} problem(s), {count[Status.WARNING]} warning(s)[/]"
        return f"[bold green]no problem found[/], {count[Status.WARNING]} warning(s)"


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
