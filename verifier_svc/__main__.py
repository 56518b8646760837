"""The verifier process: ``verifier-svc --model PATH --port N``."""

import sys
from typing import Any

from specgate.service import main as process


def add_servicer(model: Any, handlers: Any) -> None:
    """Put the servicer for ``model`` into the server's handlers. Imports late: flags are refused without torch."""
    from verifier_svc import service

    service.add_servicer(model, handlers)


def main() -> int:
    """Run the service to its end; return its exit code."""
    return process.main("verifier", "specgate.v1.VerifierService", add_servicer)


if __name__ == "__main__":
    sys.exit(main())
