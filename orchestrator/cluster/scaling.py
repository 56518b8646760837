"""The number of gateways: Serve sees none of the requests at their own ports, so the gateways report them."""

from typing import Any

REQUESTS = "requests"
"""The metric that a gateway reports to Serve: requests that run or wait in it."""
POLICY = f"{__name__}:gateways_for_requests"


def gateways_for_requests(context: Any) -> tuple[float, dict[str, Any]]:
    """Return how many gateways the current requests need; Serve applies its own delays and bounds.

    Args:
        context: a ``ray.serve.config.AutoscalingContext``.
    """
    reported = context.aggregated_metrics.get(REQUESTS, {})
    return sum(reported.values()) / context.config.target_ongoing_requests, {}
