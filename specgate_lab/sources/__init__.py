"""``orchestrator bench --sources``: what draft sources bring, on texts of three kinds."""
