"""``python -m orchestrator.cli``."""

from orchestrator.cli.main import main

if __name__ == "__main__":
    main()
