"""The whole day: steps one after the other within a time limit, told as they end and kept after each."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_day_steps.run_step import Say, run_step
from gpu_day_steps.step import Result, Status, Step, Where
from specgate_lab.provenance import sealed

FILE_NAME = "gpu_day.json"
DRY_PATIENCE = 3.0
"""A dry walk shares its few cores with others, and its limits are to find what hangs alone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, where, for how long, and where results go. ``about`` is kept beside them."""

    steps: Sequence[Step]
    where: Where
    out: Path
    limit_s: float
    about: dict[str, Any]


def run_day(plan: Plan, say: Say) -> list[Result]:
    """Run all steps, and write ``gpu_day.json`` after each, so that a machine that vanishes takes one step along."""
    plan.out.mkdir(parents=True, exist_ok=True)
    _put_aside(plan.out / FILE_NAME)
    start_s, results = time.monotonic(), list[Result]()
    for step in plan.steps:
        left_s = start_s + plan.limit_s - time.monotonic()
        results.append(_run_or_skip(step, plan.where, left_s, say))
        for line in told_of(results[-1]):
            say(line)
        _write(plan, results, time.monotonic() - start_s)
    return results


def chosen(steps: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """Return the steps of these names, in their order; "exact" is every step whose name begins with "exact:".

    Raises:
        ValueError: there is no such step; tells the names.
    """
    known = {step.name for step in steps} | {step.name.partition(":")[0] for step in steps}
    if unknown := [name for name in only if name not in known]:
        names = ", ".join(step.name for step in steps)
        raise ValueError(f"there is no step {', '.join(unknown)}; the steps are {names}")
    return [step for step in steps if not only or step.name in only or step.name.partition(":")[0] in only]


def told_of(result: Result) -> list[str]:
    """Return the line of a step, and the end of its log where it failed."""
    line = f"{result.status}  {result.name:<26} {result.seconds:6.1f} s  {result.told}"
    return [line, *(f"    | {text}" for text in result.last_log_lines)]


def _run_or_skip(step: Step, where: Where, left_s: float, say: Say) -> Result:
    # Tiny models tell nothing of what the real ones take.
    needed_s = 0.0 if where.dry else step.estimate_s
    if left_s <= needed_s:
        told = f"no time left: {max(0.0, left_s):.0f} s, and it takes about {step.estimate_s:.0f}"
        return Result(step.name, Status.SKIP, 0.0, told)
    limit_s = min(step.limit_s * (DRY_PATIENCE if where.dry else 1.0), left_s)
    say(f"----  {step.name}: {step.about} (at most {limit_s:.0f} s)")
    return run_step(step, where, limit_s, say)


def _put_aside(file: Path) -> None:
    """Keep an earlier day's results under their date."""
    if file.is_file():
        date = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(file.stat().st_mtime))
        file.rename(file.with_name(f"{file.stem}-{date}.json"))


def _write(plan: Plan, results: Sequence[Result], seconds: float) -> None:
    """Replace the file as a whole: half a file is never seen."""
    steps = [result.to_object() for result in results]
    whole = {**plan.about, "dry": plan.where.dry, "seconds": round(seconds, 1), "steps": steps}
    beside = plan.out / f".{FILE_NAME}"
    beside.write_text(json.dumps(sealed(whole), indent=1) + "\n", "utf-8")
    os.replace(beside, plan.out / FILE_NAME)
