"""`loadgen` and `python -m loadgen`: the command line, whose modules take a second to load."""

import sys


def main() -> int:
    """Run the command line; returns the exit code, also where Ctrl-C comes while it loads."""
    try:
        from loadgen.cli import main as command
    except KeyboardInterrupt:
        print("loadgen: interrupted", file=sys.stderr)
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
