"""What the day's figures were estimated at for an H200, before a card had shown any: kernels by their dependent phases.

A phase that waits for the one before it costs 1.7 to 2.1 µs, and weights cost their bytes. With T a target forward, D a
draft token and O a round beside both, a round of γ drafts takes T + γD + O.
"""

from measure_round import Services

from gpu_day_steps.sizes import MIDDLE, draft_name
from gpu_day_steps.step import Range

PHASE_US: Range = (1.7, 2.1)
DRAFT_TOKEN_US: dict[int, Range] = {30: (270.0, 340.0), 4: (55.0, 75.0)}
"""By layers."""
TARGET_US: Range = (1050.0, 1120.0)
OVERHEAD_US: dict[Services, Range] = {Services.GRPC: (0.0, 400.0), Services.ONE_PROCESS: (0.0, 120.0)}
THIN = draft_name(MIDDLE, thin=True)
ONE_PROCESS: dict[str, Range] = {
    **{draft_name(alpha): (ratio, ratio) for alpha, ratio in ((0.7, 1.37), (0.8, 1.57), (0.9, 1.93))},
    THIN: (2.79, 2.79),
}
"""The best γ over the target alone, by the draft."""
OVER_GRPC: dict[str, Range] = {
    draft_name(alpha): ratios for alpha, ratios in ((0.7, (0.80, 1.19)), (0.8, (0.98, 1.40)), (0.9, (1.34, 1.77)))
}
"""With an overhead of 1,600 µs, and of 400."""
