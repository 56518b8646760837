"""What tests of the conversions share."""

from collections.abc import Callable
from typing import Any

import pytest

from specgate.errors import InvalidArgument


def over_the_wire(pb: Any) -> Any:
    """Return a message as its receiver reads it."""
    return type(pb).FromString(pb.SerializeToString())


def refused(act: Callable[[], object], field: str, problem: str) -> None:
    """Check that ``act`` is refused for just this field, with ``problem`` among the words."""
    with pytest.raises(InvalidArgument) as caught:
        act()
    assert caught.value.field == field
    assert problem in caught.value.problem
