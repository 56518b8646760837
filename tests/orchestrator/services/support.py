"""What the tests of services share."""

from tests.support.decoding import emitted, target_alone
from tests.support.faults import Run


async def exact(one: Run) -> Run:
    """Run a request to its end, and check that its text is what the target alone says: no gap and no repeat."""
    assert emitted(await one()) == target_alone(one.session.opening_spec)
    return one
