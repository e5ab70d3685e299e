"""The registry in a broker's process, as the command line starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from tests.patience import PATIENCE_S
from tests.registry.asking import record

from penstock.errors import UserError
from penstock.registry import RegistryServer


def test_a_broker_serves_its_registry(tmp_path: Path) -> None:
    """At the address that it prints; it ends with the broker."""
    command = [sys.executable, "-m", "penstock.cli", "broker", "--data", str(tmp_path / "log")]
    command += ["--listen", "127.0.0.1:0", "--registry", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().startswith("listening on ")
            url = child.stdout.readline().strip().rpartition(" ")[2]
            body = json.dumps({"schema": record("x")}).encode()
            headers = {"Content-Type": "application/json"}
            asked = Request(f"{url}/subjects/a/versions", body, headers)
            with urlopen(asked, timeout=PATIENCE_S) as answer:
                assert json.load(answer)["id"] == 1
        finally:
            child.terminate()
        assert child.wait(PATIENCE_S) == 0


def test_a_registry_beyond_loopback_needs_a_password() -> None:
    """The message names the variable."""
    with pytest.raises(UserError, match="PENSTOCK_REGISTRY_PASSWORD"):
        RegistryServer("127.0.0.1:9092", host="0.0.0.0", port=0)
