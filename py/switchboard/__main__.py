"""``python -m switchboard``: the command line."""

from switchboard.cli import main

main()
