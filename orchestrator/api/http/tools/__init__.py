"""How models write calls of tools: a grammar of the calls they must make, and readers of their text."""
