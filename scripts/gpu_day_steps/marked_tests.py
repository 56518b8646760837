"""The tests that are marked gpu, by pytest, in one process: importing torch takes longer than most of them."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from gpu_day_steps.step import CheckFailed, Context

MARK = "mark.gpu"
NONE_COLLECTED = 5
"""pytest's exit code."""


def files_with_gpu_tests(root: Path) -> list[Path]:
    """Return the test files that have such tests, relative to the root."""
    found = (root / "tests").rglob("test_*.py")
    return sorted(file.relative_to(root) for file in found if MARK in file.read_text("utf-8"))


def run(context: Context) -> str:
    """Fail unless every gpu test passes, and at least one ran. On a dry walk they are collected alone."""
    report = context.where.scratch / "gpu_tests.xml"
    code = _pytest(context, "--collect-only" if context.where.dry else f"--junit-xml={report}")
    if context.where.dry:
        if code not in (0, NONE_COLLECTED):
            raise CheckFailed(f"pytest could not collect the files: exit code {code}")
        return "collected; dry: not checked"
    if not report.is_file():
        raise CheckFailed(f"pytest ended with exit code {code} and without a report")
    return _judged(report, code)


def _pytest(context: Context, option: str) -> int:
    # Warnings about plugins of that machine which our settings do not know are no matter of ours.
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", option]
    files = map(str, files_with_gpu_tests(context.where.root))
    return subprocess.run([*command, *files], cwd=context.where.root, check=False).returncode


def _judged(report: Path, code: int) -> str:
    cases = ElementTree.parse(report).getroot().findall(".//testcase")
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    told = f"{len(cases) - len(failed) - len(skipped)} of {len(cases)} passed, {len(skipped)} skipped"
    if failed:
        raise CheckFailed(f"{told}; {', '.join(str(case.get('name')) for case in failed)}")
    if code != 0 or len(skipped) == len(cases):
        reason = next((skip.get("message") for case in skipped if (skip := case.find("skipped")) is not None), "")
        raise CheckFailed(f"{told}, exit code {code}: nothing was shown. {reason or ''}".strip())
    return told
