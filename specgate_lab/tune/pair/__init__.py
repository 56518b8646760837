"""``orchestrator tune``: which drafts to use on the user's prompts, under which gate, or none at all."""
