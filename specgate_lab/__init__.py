"""All that measures, proves, searches and trains. Nothing that serves imports it."""
