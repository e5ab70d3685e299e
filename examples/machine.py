"""Watches this machine: what its processors, memory, disks, networks and processes do.

    ./run                               this pipeline, its events and a live page
    penstock run examples/machine.py    the pipeline alone, if something else sends the events

The events come from a sampler (`penstock.demo.machine`); each is a JSON object in a topic.
"""

from __future__ import annotations

import penstock as ps


def pipeline(directory: str = "machine.penstock", log: str | None = None) -> ps.App:
    """The views over the sampler's topics."""
    app = ps.App("machine", directory=directory, log=log)
    at = ps.event_time("at", lateness="2 seconds", idle="10 seconds")

    cpu = app.stream(
        "cpu", "core INT NOT NULL, busy DOUBLE NOT NULL, at TIMESTAMP NOT NULL", time=at
    )
    memory = app.stream("memory", "used BIGINT, available BIGINT, at TIMESTAMP NOT NULL", time=at)
    disk = app.stream(
        "disk",
        "device STRING NOT NULL, read_per_s DOUBLE, written_per_s DOUBLE, at TIMESTAMP NOT NULL",
        time=at,
    )
    network = app.stream(
        "network",
        "interface STRING NOT NULL, received_per_s DOUBLE, sent_per_s DOUBLE, "
        "at TIMESTAMP NOT NULL",
        time=at,
    )
    processes = app.stream(
        "processes",
        "event STRING NOT NULL, pid BIGINT NOT NULL, name STRING, at TIMESTAMP NOT NULL",
        time=at,
    )
    work = app.stream(
        "work",
        "pid BIGINT NOT NULL, name STRING, cpu_s DOUBLE, memory BIGINT, at TIMESTAMP NOT NULL",
        time=at,
    )

    # How busy each core is, minute by minute.
    load = app.view(
        "load_per_minute",
        cpu.select("core", "at", percent="busy * 100")
        .window(ps.tumbling("1 minute"))
        .group_by("core")
        .agg(load=ps.avg("percent"), peak=ps.max("percent"), samples=ps.count()),
    )
    # The same, smoothed over all cores: windows of the windows above.
    app.view(
        "load_smoothed",
        load.window(ps.hopping("5 minutes", every="1 minute"))
        .group_by()
        .agg(load=ps.avg("load"), peak=ps.max("peak")),
    )
    # Every few seconds, so that the page moves.
    app.view(
        "load_now",
        cpu.select("at", percent="busy * 100")
        .window(ps.tumbling("5 seconds"), keep="1 hour")
        .agg(load=ps.avg("percent"), peak=ps.max("percent")),
    )
    app.view(
        "memory",
        memory.select("at", used_mb="used / 1e6", available_mb="available / 1e6")
        .window(ps.tumbling("10 seconds"), keep="3 hours")
        .agg(used_mb=ps.avg("used_mb"), available_mb=ps.min("available_mb")),
    )
    app.view(
        "disk",
        disk.window(ps.tumbling("10 seconds"), keep="3 hours")
        .group_by("device")
        .agg(written_per_s=ps.avg("written_per_s"), read_per_s=ps.avg("read_per_s")),
    )
    app.view(
        "network",
        network.window(ps.tumbling("10 seconds"), keep="3 hours")
        .group_by("interface")
        .agg(received_per_s=ps.avg("received_per_s"), sent_per_s=ps.avg("sent_per_s")),
    )
    # Who works: seconds of processor time by program.
    app.view(
        "busiest_processes",
        work.window(ps.tumbling("1 minute"), keep="1 day")
        .group_by("name")
        .agg(cpu_s=ps.sum("cpu_s"), memory=ps.max("memory"), samples=ps.count()),
    )
    app.view(
        "starts_per_minute",
        processes.where("event = 'start'")
        .window(ps.tumbling("1 minute"), keep="1 day")
        .group_by("name")
        .agg(starts=ps.count()),
    )
    return app


if __name__ == "__main__":
    pipeline().main()
