"""All steps, the most valuable first.

What each should take on an H100 (``estimate_s``, from an audit of the CUDA path with torch 2.11 and its slow forwards)
adds up to 515 of the 540 seconds; on an H200 a day took 470. Most of it is importing torch and starting services.
Limits are longer, so that a step may be slower, and short enough that one that hangs leaves most others their time.
"""

from pathlib import Path

from gpu_day_steps.marked_tests import files_with_gpu_tests
from gpu_day_steps.step import Step

_PACKAGE = __package__ or "gpu_day_steps"


def all_steps(root: Path) -> list[Step]:
    """Return the steps in order."""
    return [
        _step("smoke", "versions, card, bandwidth, which attention serves, graphs", "smoke:machine", 45, 20),
        _step("text", "a text through both services, against generate", "texts:through_services", 75, 35),
        *(_tests_step(file) for file in files_with_gpu_tests(root)),
        _step("forwards", "forwards of both shapes against the bandwidth", "timed_forwards:both_shapes", 85, 55),
        _step("exact:float32", "texts in float32, in every way", "exactness:of_dtype", 60, 35, "float32"),
        _step("exact:bfloat16", "texts in bfloat16, in every way", "exactness:of_dtype", 60, 35, "bfloat16"),
        _step("origin", "the origin experiment's table on planted pairs", "origin:table", 165, 150),
        _step("sessions", "1, 8 and 16 sessions at a time", "many_sessions:table", 60, 40),
        _step("timeline", "where the microseconds of a round go", "timeline:of_a_round", 90, 35),
    ]


def _tests_step(file: Path) -> Step:
    return _step(f"tests:{file.stem}", f"the gpu tests of {file}", "marked_tests:run_file", 45, 15, str(file))


def _step(name: str, about: str, target: str, limit_s: float, estimate_s: float, argument: str = "") -> Step:
    return Step(name, about, f"{_PACKAGE}.{target}", limit_s, estimate_s, argument)
