"""The commands. Nothing imports them."""
