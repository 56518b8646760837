"""When to draft and how far: the fixed gates, and the one that learns."""
