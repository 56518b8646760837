"""``orchestrator tune`` and ``train-draft``: what to draft with, found by measuring, or made."""
