"""Attention over KV pages: the interface, and the kernels behind it."""
