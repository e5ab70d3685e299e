"""Where the command line of a program comes from."""

import subprocess
import sys

import pytest

import penstock as ps


def test_a_program_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`main` is the command line of the program's pipeline."""
    with pytest.raises(SystemExit) as done:
        ps.App("shop").main(["--help"])
    assert not done.value.code
    assert "Run the pipeline 'shop'" in capsys.readouterr().out


def test_an_app_stands_below_the_command_line() -> None:
    """Without the package's `App` there is no command line: `penstock.app` doesn't know of one."""
    code = (
        "import sys; from penstock.app import App; from penstock.errors import SetupError\n"
        "try: App('shop').main([])\n"
        "except SetupError as error: print(error)\n"
        "assert 'penstock.cli' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "Use penstock.App" in done.stdout
