"""A verifier whose acceptance rule is wrong: ``python -m tests.support.broken_verifier --break NAME FLAGS``."""

import sys
from collections.abc import Sequence

import torch

from specgate.runtime import noise
from specgate.runtime.grammar import GrammarState
from specgate.runtime.noise import Purpose
from specgate.runtime.sampling import sample_weights
from specgate.service import main as process
from verifier_svc import acceptance
from verifier_svc.acceptance import Acceptance, accept_agreeing

ALLOWED = GrammarState.allowed


def recover_from_target(target_probs: torch.Tensor, draft_probs: torch.Tensor, seed: int, position: int) -> int:
    """After a rejection sample the plain target, not the residual."""
    return sample_weights(target_probs, noise.uniform(noise.row_key(seed, position, Purpose.RESIDUAL)))


def accept_one_more(draft_token_ids: Sequence[int], target_token_ids: Sequence[int]) -> Acceptance:
    """Accept the first draft token that disagrees, too."""
    agreed, token_id = accept_agreeing(draft_token_ids, target_token_ids)
    if agreed == len(draft_token_ids):
        return Acceptance(agreed, token_id)
    return Acceptance(agreed + 1, target_token_ids[agreed + 1])


def allowed_at_first(state: GrammarState, draft: Sequence[int], behind: Sequence[int] = ()) -> torch.Tensor:
    """Mask the first row, and let any token follow a draft token."""
    rows = ALLOWED(state, draft, behind)
    rows[1:] = 0xFF
    return rows


def main() -> int:
    """Break one rule, then serve as the real one does."""
    _, flag, name, *flags = sys.argv
    if flag == "--break" and name == "residual":
        acceptance._recover = recover_from_target
    elif flag == "--break" and name == "agreement":
        acceptance.accept_agreeing = accept_one_more
    elif flag == "--break" and name == "mask":
        GrammarState.allowed = allowed_at_first  # type: ignore[method-assign,assignment]
    else:
        raise SystemExit(f"{flag} {name} is no rule to break")
    return process.main("verifier", flags)


if __name__ == "__main__":
    sys.exit(main())
