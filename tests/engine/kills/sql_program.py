"""`views.sql` as a program of its own. Arguments: name, directory, address."""

import sys
from pathlib import Path

import penstock as ps


def pipeline(name: str, directory: str, address: str) -> ps.App:
    """The program."""
    app = ps.App(name, directory=directory, log=f"kafka://{address}")
    app.sql(Path(__file__).with_name("views.sql").read_text())
    return app


if __name__ == "__main__":
    pipeline(*sys.argv[1:4]).main(["--no-ui", *sys.argv[4:]])
