"""The gate policy ``auto``: learn from past rounds how far a draft pays, and plan the next round by it."""
