"""A service whose every forward takes longer, as if its model were that much larger: a process of its own.

``python -m tests.support.slow_service ROLE SLOW_US FLAGS...`` takes the flags of the service.
"""

import sys
import time
from typing import Any

from specgate.service import loading
from specgate.service import main as process


def main() -> int:
    """Run the service to its end; return its exit code."""
    role, slow_us, *flags = sys.argv[1:]
    build = loading.build_runner

    def build_slow(*arguments: Any) -> Any:
        runner = build(*arguments)
        slow_down(runner, int(slow_us))
        return runner

    loading.build_runner = build_slow  # type: ignore[assignment]
    return process.main(role, flags)


def slow_down(runner: Any, slow_us: int) -> None:
    """Let each forward of a ``ModelRunner`` wait so many microseconds besides."""
    forward = runner.forward

    def slow_forward(*arguments: Any, **options: Any) -> Any:
        logits = forward(*arguments, **options)
        time.sleep(slow_us / 1e6)
        return logits

    runner.forward = slow_forward
    runner.drafter = None


if __name__ == "__main__":
    sys.exit(main())
