"""`penstock queue`: put jobs into queues, work on them, look at them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import orjson

from penstock.cli.support.address import find_broker
from penstock.cli.support.options import BrokerGroup, broker_option, client_settings, form_option
from penstock.cli.support.tables import write_rows

if TYPE_CHECKING:
    from penstock.queue import Job, Queue


@click.group(
    cls=BrokerGroup,
    epilog="""\b
Examples:
  penstock queue put mails '{"to": "ann"}' --delay '10 minutes'
  penstock queue work mails -- ./send-mail          the job on standard input; exit status 0: done
  penstock queue work mails --max 10                print jobs, a line each, and acknowledge them
  penstock queue stats mails
  penstock queue list
""",
)
@broker_option
@click.pass_context
def queue(ctx: click.Context, broker: str | None) -> None:
    """Put jobs into queues and process them, each by one of many workers."""
    ctx.obj = broker


_workers = click.option("--workers", metavar="GROUP", help="The workers' group. Default: NAME.")


def _open(broker: str | None, name: str, **options: Any) -> Queue:
    from penstock.queue import Queue

    return Queue(name, find_broker(broker), **options, **client_settings())


@queue.command("put")
@click.argument("name")
@click.argument("values", nargs=-1)
@click.option("--key", help="Jobs of one key go to one partition.")
@click.option(
    "--delay", metavar="DURATION", help="How long the job waits before its first delivery."
)
@click.pass_obj
def put(
    broker: str | None, name: str, values: tuple[str, ...], key: str | None, delay: str | None
) -> None:
    """Put VALUES into the queue NAME, a job each; without VALUES, the lines of standard input."""
    with _open(broker, name) as jobs:
        for value in values or (line.rstrip("\n") for line in sys.stdin):
            jobs.put(value, key, delay=delay)


@queue.command("work", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@_workers
@click.option("--max", "-n", "most", type=click.IntRange(1), help="End after so many jobs.")
@click.option("--idle", metavar="DURATION", help="End after this long without a job.")
@click.option("--attempts", type=click.IntRange(2, 10), default=5, show_default=True)
@click.option("--lock", default="30 seconds", show_default=True, help="How long one job may take.")
@click.option("--backoff", default="1 second", show_default=True, help="Doubled with each attempt.")
@click.option("--order", type=click.Choice(["key"]), help="key: jobs of one key in their order.")
@click.option("--show", is_flag=True, help="Print JSON lines with key, headers and attempt.")
@click.pass_obj
def work(
    broker: str | None,
    /,
    name: str,
    command: tuple[str, ...],
    workers: str | None,
    most: int | None,
    idle: str | None,
    *,
    show: bool,
    **options: Any,
) -> None:
    """Process jobs of the queue NAME: run COMMAND for each, or print them.

    COMMAND receives the job on standard input. If it fails, the job is retried later.
    """
    with _open(broker, name, workers=workers, **options) as jobs:
        left = most
        while left != 0:
            job = jobs.get(idle)
            if job is None:
                return
            if command:
                _run(command, job)
            else:
                with job:
                    sys.stdout.buffer.write(_line(job) if show else job.value + b"\n")
                    sys.stdout.buffer.flush()
            left = None if left is None else left - 1


def _run(command: tuple[str, ...], job: Job) -> None:
    done = subprocess.run(command, input=job.value, check=False)  # noqa: S603 - the user's own
    if done.returncode == 0:
        job.ack()
    elif job.attempt >= job.attempts:
        job.reject(f"{command[0]} ended with status {done.returncode}")
    else:
        job.release()


def _line(job: Job) -> bytes:
    row = {
        "partition": job.partition,
        "offset": job.offset,
        "attempt": job.attempt,
        "key": None if job.key is None else job.key.decode("utf-8", "replace"),
        "value": job.value.decode("utf-8", "replace"),
        "headers": {one: text.decode("utf-8", "replace") for one, text in job.headers.items()},
    }
    return orjson.dumps(row) + b"\n"


@queue.command("stats")
@click.argument("name")
@_workers
@form_option
@click.pass_obj
def stats(broker: str | None, name: str, workers: str | None, form: str) -> None:
    """Show the waiting jobs, workers and dead jobs of the queue NAME."""
    with _open(broker, name, workers=workers) as jobs:
        found = jobs.stats()
    row = [(name, found.waiting, found.workers, found.dead)]
    write_rows(("queue", "waiting", "workers", "dead"), row, form)


@queue.command("list")
@form_option
@click.pass_obj
def list_queues(broker: str | None, form: str) -> None:
    """List the queues with workers, and the number of waiting jobs."""
    from penstock.client.share import ShareClient

    rows = []
    with ShareClient(find_broker(broker), **client_settings()) as client:
        for group, state in sorted(client.share_groups().items()):
            waiting: dict[str, int] = {}
            for one in client.share_offsets(group):
                waiting[one.topic] = waiting.get(one.topic, 0) + max(one.waiting, 0)
            rows += [(topic, group, count, state) for topic, count in sorted(waiting.items())]
    write_rows(
        ("queue", "workers", "waiting", "state"),
        rows,
        form,
        nothing="There are no queues with workers. Put a job: penstock queue put NAME VALUE",
    )
