"""The process that answers the queries of `penstock.serve.queries`: `python -m penstock.serve.asked`.

Arguments: where the views are, and the bytes of memory a query may use. It ends with the process that
started it.
"""

from __future__ import annotations

import os
import queue
import resource
import sys
import threading
from dataclasses import replace
from typing import IO, Final

import orjson
import psutil
import pyarrow as pa

from penstock.errors import LimitError, PenstockError, QueryError
from penstock.serve.questions import Head, Question, Refusal, answer
from penstock.serve.views import Views

NICE: Final = 10  # the pipeline next to it comes first
READY: Final = b"{}"
"""The first line, which says that it is there."""


def main(where: str, memory_bytes: int) -> None:
    """Answers queries, one after the other, until standard input ends."""
    os.nice(NICE)
    # Whatever a library prints must not come between the answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    requests: queue.SimpleQueue[Question] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    at_rest = _reserved_bytes()
    _limit_memory(at_rest + 2 * memory_bytes)
    _send(out, READY)
    while True:
        question = requests.get()
        head: Head | Refusal
        body: memoryview | None
        try:
            found = answer(Views(where), question, memory_bytes)
            body = _body(found.table, question.bytes_max)
            head = Head(
                *(len(body), found.rows_total, found.parameters, found.types),
                *(found.version, found.since, dict(found.failures)),
            )
            del found
        except PenstockError as error:
            head, body = Refusal(type(error).__name__, str(error)), None
        except MemoryError:
            text = "expected a query that fits into memory; found one that doesn't. Request less at once"
            head, body = Refusal(LimitError.__name__, text), None
        except RecursionError:
            text = "expected a query that nests less deeply; found one beyond Python's limit"
            head, body = Refusal(QueryError.__name__, text), None
        except Exception as error:  # noqa: BLE001 - reported to the one who asked
            text = f"expected an answer; found {type(error).__name__}: {error}"
            head, body = Refusal(QueryError.__name__, text), None
        # What this query has reserved and not given back would be missing to the next one.
        worn = _reserved_bytes() - at_rest > memory_bytes // 2
        _send(out, orjson.dumps(replace(head, worn=worn)), body)


def _listen(requests: queue.SimpleQueue[Question]) -> None:
    """Takes requests; their end ends the process, in the middle of a query as well."""
    for line in sys.stdin.buffer:
        requests.put(Question(**orjson.loads(line)))
    os._exit(0)


def _reserved_bytes() -> int:
    """What counts for the limit: memory that may be written to, used or not; no mapped files."""
    if not sys.platform.startswith("linux"):
        return 0  # elsewhere the limit doesn't hold; DuckDB's own does
    return int(psutil.Process().memory_info().data)


def _limit_memory(most_bytes: int) -> None:
    """Lets the process reserve so much."""
    if not sys.platform.startswith("linux"):
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or most_bytes < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, hard))


def _body(table: pa.Table, bytes_max: int) -> memoryview:
    """A table as an Arrow stream.

    Raises:
        LimitError: it is too large for the one who asked.
    """
    if table.nbytes > bytes_max:
        raise LimitError(
            f"expected an answer of at most {bytes_max >> 20} MiB (ANSWER_BYTES_MAX); found "
            f"{table.nbytes >> 20} MiB. Request fewer rows or columns, or use `penstock query`"
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return memoryview(sink.getvalue())


def _send(out: IO[bytes], line: bytes, body: memoryview | None = None) -> None:
    out.write(line + b"\n")
    if body is not None:
        out.write(body)
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
