"""Command line without an installation: `python -m flows.cli`."""

from flows.cli.main import main

if __name__ == "__main__":
    main()
