"""The command line: `penstock`.

What scripts need is on standard output; progress, hints and errors are on standard error. Exit
codes: 0 done, 1 it failed, 2 the command line is wrong. Commands import what they use when they
run, so that `penstock --help` answers at once.
"""

from penstock.cli.entry import main, program

__all__ = ["main", "program"]
