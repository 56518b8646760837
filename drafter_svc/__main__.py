"""The drafter process: ``drafter-svc --model PATH --port N``."""

import sys
from typing import Any

from specgate.service import main as process


def add_servicer(model: Any, handlers: Any) -> None:
    """Put the servicer for ``model`` into the server's handlers."""
    from specgate.v1.drafter_service_pb2_grpc import add_DrafterServiceServicer_to_server
    from drafter_svc.service import DrafterServicer

    add_DrafterServiceServicer_to_server(DrafterServicer(model), handlers)


def main() -> int:
    return process.main("drafter", "specgate.v1.DrafterService", add_servicer)


if __name__ == "__main__":
    sys.exit(main())
