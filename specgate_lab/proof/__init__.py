"""Whether a pair writes what its target alone writes."""
