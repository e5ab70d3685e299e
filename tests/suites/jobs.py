"""A process in a peer's own Python environment that carries out jobs, one after another.

A job is a line of JSON on its standard input; a line that begins with `RESULT` is what came of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Jobs"]

RESULT = "RESULT "
ERROR_CHARACTERS_MAX = 1500


class Jobs:
    """The process.

    Args:
        command: what to run.
        log: the file that its other output is appended to.
        job_s_max: how long a job may take.
        env: variables of its own, beside this process's but for PYTHONPATH.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        job_s_max: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log.open("a")
        self._job_s_max = job_s_max
        mine = {name: one for name, one in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [str(one) for one in command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            text=True, start_new_session=True, env={**mine, **(env or {})},
        )  # fmt: skip
        self._results: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            if line.startswith(RESULT):
                self._results.put(line.removeprefix(RESULT))
            else:
                print(line, end="", file=self._log, flush=True)
        self._results.put('{"error": "its process ended"}')

    def begin(self, **job: Any) -> None:
        """Sends a job."""
        assert self._process.stdin is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)

    def ended(self) -> str | None:
        """What a job has told that should run on, if it ended."""
        return None if self._results.empty() else self._results.get()

    def result(self) -> dict[str, Any]:
        """What the job tells at its end."""
        try:
            result = json.loads(self._results.get(timeout=self._job_s_max))
        except queue.Empty:
            raise AssertionError(f"expected the job's end within {self._job_s_max:g} s") from None
        if "error" in result:
            why = result["error"][-ERROR_CHARACTERS_MAX:]
            raise AssertionError(f"expected the job to end well, found {why}")
        return dict(result)

    def kill(self) -> None:
        """Ends the process and its JVM at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
