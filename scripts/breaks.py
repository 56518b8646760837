#!/usr/bin/env python3
"""Break the product on purpose, one line at a time, and tell which test notices.

    scripts/breaks                           # all breaks of tests/breaks.toml: about half an hour
    scripts/breaks -k lease --json FILE.json # those with this text in their promise or file
    scripts/breaks --planted -k overload     # the faults of tests/planted.toml, for rows that take long
    scripts/breaks --list

A break is a mistake that a person could make, with the few tests that should fail by it. Each is made alone, in a copy
of the checkout as it is, changes included. The exit code is 1 where no test fails by a break, where its line is not
in its file once, and where its tests fail without it. By a planted fault every row must fail that is named for it.
"""

import argparse
import importlib.util
import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from checkout_copies import LIMIT_S, NOT_RUN, TESTS_FAILED, Runner, copy
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
LIST, PLANTED = "tests/breaks.toml", "tests/planted.toml"
WIDTH_IN_A_PIPE = 180


@dataclass(frozen=True, slots=True)
class Break:
    """One mistake.

    Attributes:
        promise: what does not hold with it.
        file: where it is made.
        before, after: the text as it is, which is once in the file, and as it is with the mistake.
        tests: pytest's ids, such as ``tests/test_x.py::test_y``.
    """

    promise: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a break: the first test that failed by it, or what is wrong with it."""

    promise: str
    file: str
    found_by: str = ""
    problem: str = ""
    seconds: float = 0.0


def read(path: Path) -> list[Break]:
    """Return the breaks of a list."""
    entries = tomllib.loads(path.read_text("utf-8"))["break"]
    return [Break(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


@contextmanager
def made(one: Break, folder: Path) -> Iterator[None]:
    """Make a mistake in a copy for as long as the block lasts."""
    path = folder / one.file
    text = path.read_text("utf-8")
    try:
        _write(path, text.replace(one.before, one.after))
        yield
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    # Python takes a file that was written twice in a second for the same, if it is as long.
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def place_problem(one: Break, root: Path) -> str:
    """Return why a mistake cannot be made; empty where it can."""
    path = root / one.file
    count = path.read_text("utf-8").count(one.before) if path.is_file() else 0
    return "" if count == 1 else f"its line is {count} times in {one.file}, not once"


def without_a_break(runner: Runner, folder: Path, breaks: Sequence[Break]) -> tuple[str, ...]:
    """Return the ids of the tests that fail without a break.

    Raises:
        SystemExit: pytest does not run them.
    """
    tests = dict.fromkeys(test for one in breaks for test in one.tests)
    if not tests:
        return ()
    run = runner.run(folder, tests, limit_s=None)
    if run.code not in (0, TESTS_FAILED):
        raise SystemExit(f"the tests cannot be run without a break: {' '.join((*run.failed, run.last_line))}")
    return run.failed


def checked(one: Break, root: Path, runner: Runner, folder: Path, broken: Sequence[str], *, every: bool) -> Result:
    """Return what comes of a break in the copy ``folder``; ``broken`` are the tests that fail without it.

    ``every``: all tests must fail by it, not one of them.
    """
    problem = place_problem(one, root)
    selected = tuple(f"{test}{end}" for test in one.tests for end in ("[", "::"))
    if not problem and (already := [test for test in broken if test in one.tests or test.startswith(selected)]):
        problem = f"fails without the break: {already[0]}"
    if problem:
        return Result(one.promise, one.file, problem=problem)
    start_s = time.monotonic()
    try:
        with made(one, folder):
            # A row has a limit of its own.
            run = runner.run(folder, one.tests, limit_s=None) if every else runner.run(folder, one.tests, "-x")
        # A process that a broken product ends at its exit has a code that is not pytest's.
        found_by = run.failed[0] if run.failed and run.code not in NOT_RUN else ""
        problem = "" if found_by else f"no test {'fails' if run.code == 0 else 'is run'}: {run.last_line}"
        if every and found_by and (" passed" in run.last_line or " skipped" in run.last_line):
            found_by, problem = "", f"not every row fails: {run.last_line}"
    except subprocess.TimeoutExpired:
        found_by, problem = "", f"no end within {LIMIT_S:g} s"
    return Result(one.promise, one.file, found_by, problem, round(time.monotonic() - start_s, 1))


def all_checked(breaks: Sequence[Break], root: Path, jobs: int, *, planted: bool) -> Iterator[Result]:
    """Yield what comes of each break, in order, ``jobs`` at a time. Leaving it early ends all and leaves no copy."""
    # Rows have marks that plain runs leave out, and limits of their own.
    runner = Runner("-m", "", limits={}) if planted else Runner()
    copies = SimpleQueue[Path]()
    with TemporaryDirectory(prefix="breaks-") as folder:
        for number in range(jobs):
            copies.put(copy(root, Path(folder, str(number))))

        def check(one: Break) -> Result:
            place = copies.get()
            try:
                return checked(one, root, runner, place, broken, every=planted)
            finally:
                copies.put(place)

        pool = ThreadPoolExecutor(jobs)
        try:
            broken = without_a_break(runner, Path(folder, "0"), breaks)
            yield from pool.map(check, breaks)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            pool.shutdown()


def show_list(breaks: Sequence[Break], console: Console) -> None:
    """Print the breaks and their tests."""
    table = Table("promise", "file", "tests")
    for one in breaks:
        table.add_row(*map(escape, (one.promise, one.file, "\n".join(one.tests))))
    console.print(table)


def show(results: Sequence[Result], console: Console) -> None:
    """Print what came of each break."""
    table = Table("promise", "found by", "s")
    for one in results:
        told = escape(one.found_by) or f"[red]{escape(one.problem)}"
        table.add_row(escape(one.promise), told, f"{one.seconds:.1f}")
    console.print(table)
    num_found = sum(bool(one.found_by) for one in results)
    console.print(f"{num_found} of {len(results)} breaks are found.")


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="breaks", description="Break the product, and tell which test notices.")
    parser.add_argument("-k", metavar="TEXT", default="", help="only those with this text in their promise or file")
    parser.add_argument("-j", metavar="N", type=int, default=1, help="so many at a time")
    parser.add_argument("--planted", action="store_true", help=f"those of {PLANTED}, by which every row fails")
    parser.add_argument("--list", action="store_true", help="show the breaks, and make none")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there")
    options = parser.parse_args(arguments)
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH_IN_A_PIPE)
    wanted = options.k.lower()
    path = root / (PLANTED if options.planted else LIST)
    breaks = [one for one in read(path) if wanted in f"{one.promise}\n{one.file}".lower()]
    if options.list:
        show_list(breaks, console)
        return 0
    results: list[Result] = []
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("without a break", total=len(breaks))
        for result in all_checked(breaks, root, max(1, options.j), planted=options.planted):
            results.append(result)
            if result.problem:
                progress.console.print(f"[red]{escape(result.promise)}: {escape(result.problem)}")
            progress.update(bar, advance=1, description=result.file)
    show(results, console)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=2) + "\n", "utf-8")
    return int(not all(one.found_by for one in results))


if __name__ == "__main__":
    # As Ctrl-C does: no copy is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
