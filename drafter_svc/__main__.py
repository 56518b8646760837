"""The drafter process: ``drafter-svc --model PATH --port N``."""

import sys
from typing import Any

from specgate.service import main as process


def add_servicer(model: Any, handlers: Any) -> None:
    """Put the servicer for ``model`` into the server's handlers. Imports late: flags are refused without torch."""
    from drafter_svc import service

    service.add_servicer(model, handlers)


def main() -> int:
    """Run the service to its end; return its exit code."""
    return process.main("drafter", "specgate.v1.DrafterService", add_servicer)


if __name__ == "__main__":
    sys.exit(main())
