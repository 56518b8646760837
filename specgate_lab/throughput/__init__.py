"""One request at a time, by every way to decode."""
