"""All steps, the most valuable first.

What each should take on an H200 (``estimate_s``, after two days with an earlier path) adds up to 720 seconds, and a day
has 540: what finds no time is told, and a second call with ``--only`` does it.
Limits are longer, so that a step may be slower, and short enough that one that hangs leaves most others their time.
"""

from gpu_day_steps.step import Step

_PACKAGE = __package__ or "gpu_day_steps"


def all_steps() -> list[Step]:
    """Return the steps in order."""
    return [
        _step("smoke", "versions, card, bandwidth, which attention serves, graphs", "smoke:machine", 90, 50),
        _step("loads", "services start, cold and warm: all kernels are compiled", "loads:twice", 150, 100),
        _step("phases", "what a dependent phase costs at the least", "phases:empty", 30, 10),
        _step("draft", "a draft token, of both shapes", "draft_tokens:both_shapes", 75, 50),
        _step("target", "a forward of few rows, ours and the model's own", "target_rows:by_own_kernels", 60, 30),
        _step("round", "what a round takes beside its forwards", "rounds:beside_forwards", 120, 80),
        _step("one process", "the origin's table, both models in one process", "one_process:table", 110, 80),
        _step("origin", "the origin's table through services", "origin:table", 110, 80),
        _step("gammas", "texts of the bundled pair by γ, to the bit", "gammas:bundled", 45, 20),
        _step("real", "the same with real weights", "gammas:real", 75, 45),
        _step("exact:bfloat16", "texts in bfloat16, in every way", "exactness:of_dtype", 60, 40, "bfloat16"),
        _step("exact:float32", "texts in float32, in every way", "exactness:of_dtype", 60, 40, "float32"),
        _step("tests", "the tests that are marked gpu", "marked_tests:run", 120, 60),
        _step("sessions", "1, 8 and 16 sessions at a time", "many_sessions:table", 60, 35),
    ]


def _step(name: str, about: str, target: str, limit_s: float, estimate_s: float, argument: str = "") -> Step:
    return Step(name, about, f"{_PACKAGE}.{target}", limit_s, estimate_s, argument)
