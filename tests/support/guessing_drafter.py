"""A drafter that guesses ahead whatever that costs: it never tries how rounds without guesses would do.

``python -m tests.support.guessing_drafter FLAGS...`` takes the flags of the service.
"""

import sys

import pytest

from drafter_svc.run_ahead.learned import Payoff
from specgate.service import main as process

MODULE = ("tests.support.guessing_drafter",)


def guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the drafters of this process be such ones."""
    monkeypatch.setattr(Payoff, "is_trial_due", False)


if __name__ == "__main__":
    guess(pytest.MonkeyPatch())
    sys.exit(process.main("drafter", sys.argv[1:]))
