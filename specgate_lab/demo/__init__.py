"""``orchestrator demo``."""
