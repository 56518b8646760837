"""``orchestrator tune layers``: which blocks of a target to leave out, so that it drafts for itself."""
