"""The choices of one answer: each is a request of the queue, with a seed of its own."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.decode.admission import RANDOM_SEED_BITS
from orchestrator.decode.request import GenerationRequest
from specgate.errors import InvalidArgument
from specgate.types import SEED_LIMIT, check_range

MAX_CHOICES = 16
"""In one answer: prompts times n."""
SEED_BYTES = 8


def check_num_choices(num_prompts: int, n: int) -> None:
    """Raise InvalidArgument unless there is at least one choice, and not too many."""
    if n < 1:
        raise InvalidArgument("n", f"{n} is below 1")
    if num_prompts * n > MAX_CHOICES:
        field = "prompt" if num_prompts > MAX_CHOICES else "n"
        raise InvalidArgument(field, f"{num_prompts} prompts times n = {n}; {MAX_CHOICES} choices are the most")


def check_num_logprobs(requests: Sequence[GenerationRequest], most: int) -> None:
    """Raise InvalidArgument unless the choices of one answer report at most ``most`` log-probabilities."""
    of_prompts = sum(request.num_prompt_logprobs for request in requests)
    of_outputs = sum(request.num_logprobs for request in requests)
    if of_prompts + of_outputs > most:
        field = "prompt_logprobs" if of_prompts > of_outputs else "logprobs"
        asked = f"{of_prompts + of_outputs} log-probabilities in {len(requests)} choices"
        raise InvalidArgument(field, f"asks for {asked}; gateway.max_logprobs_per_answer allows {most}")


def choices_of(requests: Sequence[GenerationRequest], n: int) -> list[GenerationRequest]:
    """Return ``n`` choices for each of the requests, which have one seed.

    Choice 0 has that seed, or a random one where there is none; the others have ``seed_of_choice``.

    Raises:
        InvalidArgument: the seed is out of its range.
    """
    if len(requests) * n == 1:
        return list(requests)
    given = requests[0].seed
    seed = secrets.randbits(RANDOM_SEED_BITS) if given is None else given
    check_range("seed", seed, 0, SEED_LIMIT - 1)
    copies = [request for request in requests for _ in range(n)]
    return [replace(request, seed=seed_of_choice(seed, index)) for index, request in enumerate(copies)]


def seed_of_choice(seed: int, index: int) -> int:
    """Return the request's own seed for choice 0; for any other one the first 8 bytes of the SHA-256 of seed and index,
    each of which is hashed as 8 bytes. All are big-endian.
    """
    if index == 0:
        return seed
    parts = (number.to_bytes(SEED_BYTES, "big") for number in (seed, index))
    return int.from_bytes(hashlib.sha256(b"".join(parts)).digest()[:SEED_BYTES], "big")
