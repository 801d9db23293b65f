"""Run the command line: python -m quantcli."""

from quantcli.cli.app import main

if __name__ == "__main__":
    raise SystemExit(main())
