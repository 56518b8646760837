"""``scripts/gpu_day``: run the steps, print a line for each and a table at the end; exit code 0 if all passed."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_day_steps.catalogue import all_steps
from gpu_day_steps.day import FILE_NAME, Plan, chosen, run_day
from gpu_day_steps.step import Result, Status, Step, Where
from specgate_lab.provenance import provenance

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 540.0
"""Whoever rents a card for ten minutes has one of them left to start Python and to bring the results home."""


def main() -> None:
    """Parse the flags and run."""
    arguments = _arguments()
    try:
        steps = chosen(all_steps(), arguments.only)
    except ValueError as error:
        sys.exit(f"gpu_day: --only: {error}")
    if arguments.list:
        print("\n".join(f"{one.name:<26} at most {one.limit_s:4.0f} s  {one.about}" for one in steps))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="gpu_day_") as scratch:
        sys.exit(_run(steps, arguments, Path(scratch)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("gpu_day", description=__doc__, epilog="--wheels FOLDER: see scripts/gpu_day")
    parser.add_argument("--out", type=Path, help=f"folder of {FILE_NAME}; docs/results, with --dry a temporary one")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="repeatable; see --list")
    parser.add_argument("--dry", action="store_true", help="walk every step on the CPU with tiny models")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help=f"seconds for all of it ({LIMIT_S:.0f})")
    parser.add_argument("--note", default="", help="kept with the results")
    parser.add_argument("--commit", help="the commit of this tree, for a copy without history")
    parser.add_argument("--list", action="store_true", help="list the steps with their limits")
    return parser.parse_args()


def _run(steps: Sequence[Step], arguments: argparse.Namespace, scratch: Path) -> int:
    start_s = time.monotonic()
    origin = provenance(["gpu_day", *sys.argv[1:]])
    plan = Plan(
        steps=steps,
        where=Where(arguments.dry, scratch, ROOT),
        out=(arguments.out or _usual_out(arguments.dry)).resolve(),
        limit_s=arguments.limit_s,
        about={
            "provenance": {**origin, "commit": origin["commit"] or arguments.commit},
            "note": arguments.note,
            "limit_s": arguments.limit_s,
        },
    )
    results = run_day(plan, lambda line: print(line, flush=True))
    _print_table(results, time.monotonic() - start_s)
    print(f"results: {plan.out / FILE_NAME}")
    return 0 if all(result.status is Status.PASS for result in results) else 1


def _usual_out(dry: bool) -> Path:
    """Return where results go unless said; those of a dry walk not among the real ones."""
    return Path(tempfile.mkdtemp(prefix="gpu_day_out_")) if dry else ROOT / "docs" / "results"


def _print_table(results: Sequence[Result], seconds: float) -> None:
    print()
    for result in results:
        print(f"{result.status}  {result.name:<26} {result.seconds:6.1f} s  {result.told}")
    counts = {status: sum(result.status is status for result in results) for status in Status}
    print(", ".join(f"{count} {status}" for status, count in counts.items()) + f" in {seconds:.0f} s")


if __name__ == "__main__":
    main()
