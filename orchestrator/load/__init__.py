"""Measuring many requests at a time: how they arrive, what each one saw, and what all of it comes to."""
