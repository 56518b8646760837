"""What every draft source checks of a round before it drafts."""

from specgate.errors import OutOfSync
from specgate.types import DraftRequest


class RoundOrder:
    """Follows the numbers of a session's rounds, and the length of what is committed.

    Args:
        num_committed: tokens that the session was opened with.
    """

    def __init__(self, num_committed: int) -> None:
        self.num_committed = num_committed
        self._last_round = -1

    def begin(self, request: DraftRequest) -> None:
        """Take it that the tokens of a round are committed.

        Raises:
            OutOfSync: the round starts from another length, or was drafted for already: its number keys the draft's
                randomness.
        """
        if request.round < self._last_round + (request.gamma > 0):
            raise OutOfSync(f"round {request.round} comes after round {self._last_round}")
        if request.gamma:
            self._last_round = request.round
        if request.position != self.num_committed:
            raise OutOfSync(f"the round starts at {request.position}, the session is at {self.num_committed}")
        self.num_committed += len(request.token_ids)
