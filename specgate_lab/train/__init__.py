"""``orchestrator train-draft``: a small draft model, distilled from texts that the target writes."""
