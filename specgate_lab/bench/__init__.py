"""All that measures and proves. Nothing that serves imports it."""
