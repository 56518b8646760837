"""How many gateways there are: Serve sees none of the requests at their own doors, so they tell it."""

from typing import Any

REQUESTS = "requests"
"""What a gateway tells Serve: requests that run or wait in it."""
POLICY = f"{__name__}:gateways_for_requests"


def gateways_for_requests(context: Any) -> tuple[float, dict[str, Any]]:
    """Return how many gateways the requests of now need; Serve applies its own delays and bounds.

    Args:
        context: a ``ray.serve.config.AutoscalingContext``.
    """
    told = context.aggregated_metrics.get(REQUESTS, {})
    return sum(told.values()) / context.config.target_ongoing_requests, {}
