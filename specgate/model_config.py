"""What a model's configuration says of the length and the end of its texts; ``config`` is a ``PretrainedConfig``."""

from typing import Any

_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_UNKNOWN_CONTEXT_LENGTH = 2048


def context_length(config: Any) -> int:
    """Return how many tokens a session may have; 2,048 where the configuration does not tell."""
    text = config.get_text_config()
    lengths = [getattr(text, field_name, None) for field_name in _CONTEXT_FIELDS]
    length = int(next((length for length in lengths if length), _UNKNOWN_CONTEXT_LENGTH))
    return min(length, _rope_limit(text) or length)


def _rope_limit(config: Any) -> int | None:
    """Return the length up to which rotary frequencies are the same for all sequences of a batch; None: any.

    LongRoPE changes them by the longest position of a whole batch, so beyond its original length a session's text
    would depend on what else runs.
    """
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    own = getattr(config, "original_max_position_embeddings", None)
    # Where layers of different types turn differently, there is one entry for each type.
    entries = [rope, *(entry for entry in rope.values() if isinstance(entry, dict))]
    longrope = [entry for entry in entries if entry.get("rope_type", entry.get("type")) == "longrope"]
    limits = [int(limit) for entry in longrope if (limit := entry.get("original_max_position_embeddings") or own)]
    return min(limits, default=None)


def ends_of(of_generation: int | list[int] | None, config: Any) -> tuple[int, ...]:
    """Return all of generation_config's end-of-sequence ids, the configuration's where it names none."""
    value = getattr(config.get_text_config(), "eos_token_id", None) if of_generation is None else of_generation
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
