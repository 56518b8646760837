"""The verifier process: ``verifier-svc --model PATH --port N``."""

import sys
from typing import Any

from specgate.service import main as process


def add_servicer(model: Any, handlers: Any) -> None:
    """Put the servicer for ``model`` into the server's handlers."""
    from specgate.v1.verifier_service_pb2_grpc import add_VerifierServiceServicer_to_server
    from verifier_svc.service import VerifierServicer

    add_VerifierServiceServicer_to_server(VerifierServicer(model), handlers)


def main() -> int:
    return process.main("verifier", "specgate.v1.VerifierService", add_servicer)


if __name__ == "__main__":
    sys.exit(main())
