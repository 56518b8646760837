"""Flags, prompts, bars and tables that the commands share."""
