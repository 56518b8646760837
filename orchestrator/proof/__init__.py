"""Is the text the target's own? What is asked of a pair, and what its answers show. Pure: no model, no connection."""
