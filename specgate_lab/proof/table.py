"""A proof for people: one line a check, where texts part, and the verdict."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specgate_lab.proof.report import CheckResult, Proof

_STYLES = {
    CheckResult.PASS: "green",
    CheckResult.NEAR_TIE: "green",
    CheckResult.UNDECIDED: "yellow",
    CheckResult.FAIL: "bold red",
    CheckResult.SKIPPED: "dim",
}


def print_proof(console: Console, proof: Proof) -> None:
    """Print the checks as a table, and the verdict under it."""
    about = proof.about
    told = f"target {about['target']}, draft {about['draft']}, {about['dtype']}"
    console.print(Text(told, "dim"), soft_wrap=True)
    table = Table(show_header=False, box=None, padding=(0, 1))
    for no_wrap in (True, True, False):
        table.add_column(no_wrap=no_wrap, overflow="fold")
    for check in proof.checks:
        mark = Text(check.outcome.upper(), _STYLES[check.outcome])
        table.add_row(mark, check.name, Text("\n→ ".join([check.message, *check.details])))
    console.print(table)
    console.print(Text(proof.verdict, "bold green" if proof.holds else "bold red"), soft_wrap=True)
