"""Penstock runs one of Nexmark's queries over topics, on Spark; prints one line of JSON.

With `--out` the result is written as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import penstock as ps
from auctions.queries import LANGUAGES, pipeline
from peers.batches import Batch, steady_rows_per_s
from penstock.engine.log import KafkaLog
from penstock.engine.spark.session import start_context
from penstock.formats.json import encode_rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", required=True, help="the broker, HOST:PORT")
    parser.add_argument("--query", choices=list(LANGUAGES["sql"]), required=True)
    parser.add_argument("--language", choices=list(LANGUAGES), default="python")
    parser.add_argument("--rows", type=int, required=True, help="in the topics that it reads")
    parser.add_argument("--topic", default="result", help="for the rows of a stream")
    parser.add_argument("--out", type=Path, help="write the result to this file")
    parser.add_argument(
        "--per-batch", type=int, help="events of a partition (default: Penstock's own)"
    )
    parser.add_argument("--parallelism", type=int, default=2)
    return parser.parse_args()


def run(options: argparse.Namespace, work: Path) -> dict[str, object]:
    """Runs the query from the topics' beginnings until nothing is left to do."""
    query = LANGUAGES[options.language][options.query]
    limit = {} if options.per_batch is None else {"batch_rows": options.per_batch}
    app = pipeline(
        query,
        work / "nexmark.penstock",
        topic=options.topic,
        log=f"kafka://{options.bootstrap}",
        cores=options.parallelism,
        **limit,
    )
    found = measure(app, options.rows, options.parallelism)
    if options.out and query.view:
        write_view(app.directory, options.out)
    elif options.out:
        write_topic(options.bootstrap, options.topic, options.out)
    return found


def measure(app: ps.App, rows: int, cores: int) -> dict[str, object]:
    """Runs a program until so many rows were read, and all that follows from them is done."""
    progress: list[ps.Progress] = []
    ends: list[float] = []
    idle: list[int] = []

    def committed(batch: ps.Progress) -> None:
        progress.append(batch)
        ends.append(time.monotonic())

    def is_done() -> bool:
        """All rows were read, and a look at the log after that gave no batch."""
        return bool(idle) and idle[-1] == len(progress) and _rows(progress) >= rows

    launched = time.monotonic()
    start_context(app.name, None, app.directory / "spark", cores=cores)
    started = time.monotonic()
    app.run(on_progress=committed, on_idle=lambda: idle.append(len(progress)), until=is_done)
    times = [started, *ends]
    batches: list[Batch] = [
        {"rows": batch.rows, "ms": 1000 * (times[i + 1] - times[i])}
        for i, batch in enumerate(progress)
    ]
    seconds = ends[-1] - started
    return {
        "side": "penstock",
        "rows": rows,
        "seconds": round(seconds, 3),
        "rows_per_s": round(rows / seconds),
        "steady_rows_per_s": steady_rows_per_s(batches),
        "startup_s": round(started - launched, 3),
        "seconds_by_part": {
            part: round(sum(batch.seconds.get(part, 0.0) for batch in progress), 3)
            for part in sorted({part for batch in progress for part in batch.seconds})
        },
    }


def _rows(progress: list[ps.Progress]) -> int:
    return sum(batch.rows for batch in progress)


def write_view(directory: Path, out: Path) -> None:
    """The view as JSON lines."""
    with out.open("wb") as file:
        for line in encode_rows(ps.serve.Views(directory).table("result")).to_pylist():
            file.write(line.encode() + b"\n")


def write_topic(bootstrap: str, topic: str, out: Path, *, newest: bool = False) -> None:
    """The values of a topic as lines; of each key the newest only, if so told."""
    log = KafkaLog(bootstrap)
    lines: dict[object, bytes] = {}
    with out.open("wb") as file:
        for partition, end in log.end_offsets([topic])[topic].items():
            for records in log.read(topic, partition, 0, end):
                buffer, places = (
                    memoryview(records.buffer),
                    [records.value_start, records.value_length],
                )
                if newest:
                    places += [records.key_start, records.key_length]
                for start, length, *key in zip(*places, strict=True):
                    line = bytes(buffer[start : start + length])
                    if newest:
                        lines[bytes(buffer[key[0] : key[0] + key[1]])] = line
                    else:
                        file.write(line + b"\n")
        file.writelines(line + b"\n" for line in lines.values())
    log.close()


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="penstock-nexmark-") as work:
        print(json.dumps(run(options, Path(work))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
