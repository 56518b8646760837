"""Services that are further away, and the bytes that cross."""
