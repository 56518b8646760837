"""The drafter process: ``drafter-svc --model PATH --port N``."""

import sys

from specgate.service import main as process


def main() -> int:
    """Run the service to its end; return its exit code."""
    return process.main("drafter")


if __name__ == "__main__":
    sys.exit(main())
