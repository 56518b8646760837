"""How much sharper the target's choice is than the softmax of the draft's scores."""

import math
from collections.abc import Sequence

from drafter_svc.run_ahead.outcomes import Candidate

PRIOR_TOKENS = 8.0
"""Observed tokens until they weigh as much as a sharpness of 1."""
FORGET = 0.995
"""What a token counts after the next one: texts change by the page."""
LEAST, MOST = 0.25, 4.0
"""Fitted were 0.9 to 2.3, by the pair of models and the temperature."""


class Sharpness:
    """β in softmax(β x score), fitted by maximum likelihood to the tokens that the target took.

    Newton's method on log β, one step a token: with p = softmax(β x score) the gradient is log p(token) - E[log p], and
    the information Var[log p].
    """

    def __init__(self) -> None:
        self.beta = 1.0
        self._information = PRIOR_TOKENS

    def learn(self, row: Sequence[Candidate], token_id: int) -> None:
        """Learn from the token that the target chose among these candidates; any other token counts as the last one."""
        if len(row) < 2:
            return
        logs = [math.log(one.chance) for one in row]
        taken = next((log for log, one in zip(logs, row, strict=True) if one.token_id == token_id), logs[-1])
        mean = sum(one.chance * log for log, one in zip(logs, row, strict=True))
        variance = sum(one.chance * (log - mean) ** 2 for log, one in zip(logs, row, strict=True))
        # Never less than the prior: in text where every token is sure, one surprise says little.
        self._information = max(FORGET * self._information + variance, PRIOR_TOKENS)
        step = min(max((taken - mean) / self._information, -0.5), 0.5)
        self.beta = min(max(self.beta * math.exp(step), LEAST), MOST)
