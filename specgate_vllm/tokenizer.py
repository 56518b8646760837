"""A digest of the target's vocabulary, by which a drafter refuses a target whose token ids mean something else."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path


def fingerprint(folder: str) -> dict[str, str]:
    """Return the vocabulary's digest as the contract has it; all libraries write it alike. Empty: none is compared."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # no file, or one of another form
        model = json.loads((Path(folder) / "tokenizer.json").read_text("utf-8"))["model"]
        vocabulary = sorted([token_id, token] for token, token_id in model["vocab"].items())
        written = json.dumps(vocabulary, ensure_ascii=True, sort_keys=True)
        return {"vocabulary": hashlib.sha256(written.encode()).hexdigest()}
    return {}
