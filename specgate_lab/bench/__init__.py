"""``orchestrator bench``: how fast the pair is, by every way to decode, under load, and over a distance."""
