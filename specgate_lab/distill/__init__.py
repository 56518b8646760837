"""Distillation: a small draft model made from texts that the target writes."""
