"""A real Apache Kafka broker (KRaft) as a child process, or three of them, for benchmarks and peer tests.

    if (reason := available()) is None:
        with KafkaProcess(tmp_path) as kafka:
            connect(kafka.address)
        with KafkaCluster(tmp_path) as cluster:
            connect(cluster.address)  # of all nodes: one of them may be killed and started again

Everything that Kafka writes is under its data directory, its console included (`kafka.log`).
Starting again on the same directory continues with the same data, on the same port.
"""

import contextlib
import os
import re
import socket
import struct
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from peers import cache

READY_TIMEOUT_S = 180.0  # a cold JVM on a busy machine; 2.3 s measured on an idle one
FORMAT_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0  # Kafka's controlled shutdown
PROBE_TIMEOUT_S = 2.0
PROBE_INTERVAL_S = 0.05
HEAP_MIB = 1024  # the size that the project's figures for Kafka were taken with
CLUSTER_HEAP_MIB = 384  # of each node of a cluster: correctness is asked of it, not speed
NODES = 3  # the least of which one may be lost
LOG_TAIL_CHARS = 2000  # of the broker's own words in an error

PROPERTIES = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.{quorum}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={log_dir}
num.partitions=2
default.replication.factor={copies}
min.insync.replicas={copies_min}
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={copies_min}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={copies_min}
group.initial.rebalance.delay.ms=0
"""


def new_cluster_id() -> str:
    """A random UUID as Kafka writes it."""
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def available() -> str | None:
    """Why Kafka can't be started here and what to do about it, or None where it can."""
    return cache.problem("kafka")


def free_port() -> int:
    """A port of the loopback interface that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Whether a broker answers ApiVersions: its port opens some time before it serves."""
    client_id = b"probe"
    request = struct.pack(">hhih", 18, 0, 1, len(client_id)) + client_id
    try:
        with socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(8)
    except OSError:
        return False
    return len(answer) == 8 and struct.unpack(">ii", answer)[1] == 1


def wait_until_ready(
    address: str, *, timeout_s: float = READY_TIMEOUT_S, died: Callable[[], str | None]
) -> None:
    """Wait until a broker answers.

    Args:
        address: `host:port`.
        timeout_s: When to give up with a TimeoutError.
        died: Says why waiting is pointless (the process ended), or None while it isn't.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout_s
    while not answers(host, int(port)):
        if reason := died():
            raise RuntimeError(f"expected a broker at {address}; found that it ended: {reason}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected a broker at {address} within {timeout_s:g} s; found none")
        time.sleep(PROBE_INTERVAL_S)


@dataclass(frozen=True)
class Member:
    """One node's place in a cluster.

    Attributes:
        node_id: From 1 on.
        cluster_id: Of all nodes.
        controllers: The ports of all nodes' controllers, by node.
    """

    node_id: int
    cluster_id: str
    controllers: tuple[int, ...]


class KafkaProcess:
    """One Kafka node; started by its construction, ended by `stop`, `kill` or its `with` block.

    Args:
        data_dir: Where it keeps everything; made and formatted if need be.
        port: To listen on (loopback); 0 takes a free one, or the directory's former one.
        settings: Further server properties, by name.
        member: Its place in a cluster, which answers once most of its nodes run: construction then doesn't
            wait, `wait` does. None is a cluster of one.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        settings: dict[str, str] | None = None,
        member: Member | None = None,
    ) -> None:
        if reason := available():
            raise RuntimeError(reason)
        self.data_dir = Path(data_dir).resolve()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._properties = self.data_dir / "kafka.properties"
        self._log = self.data_dir / "kafka.log"
        self._member = member
        self.port = self._configure(port, settings or {})
        self.address = f"127.0.0.1:{self.port}"
        if not (self.data_dir / "data" / "meta.properties").is_file():
            self._format()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
            )
        if member is None:
            self.wait()

    def wait(self) -> None:
        """Wait until it answers; where it doesn't, end it."""
        try:
            wait_until_ready(self.address, died=self._died)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._process.pid

    def stop(self) -> None:
        """End it as an operator would (SIGTERM): it flushes and leaves."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _configure(self, port: int, settings: dict[str, str]) -> int:
        """Write the properties; the ports of a former start are kept unless configured otherwise."""
        controller_port = 0
        if self._member is not None:
            controller_port = self._member.controllers[self._member.node_id - 1]
        elif self._properties.is_file():
            known = self._properties.read_text(encoding="utf-8")
            former = re.search(r"PLAINTEXT://[^:]+:(\d+),CONTROLLER://[^:]+:(\d+)", known)
            if former:
                port = port or int(former[1])
                controller_port = int(former[2])
        port = port or free_port()
        controller_port = controller_port or free_port()
        alone = self._member is None
        text = PROPERTIES.format(
            node_id=1 if self._member is None else self._member.node_id,
            quorum=self._quorum(controller_port),
            copies=1 if alone else NODES,
            copies_min=1 if alone else NODES - 1,
            port=port,
            controller_port=controller_port,
            log_dir=self.data_dir / "data",
        )
        text += "".join(f"{name}={value}\n" for name, value in settings.items())
        self._properties.write_text(text, encoding="utf-8")
        return port

    def _quorum(self, controller_port: int) -> str:
        if self._member is None:
            return f"bootstrap.servers=127.0.0.1:{controller_port}"
        voters = (f"{i}@127.0.0.1:{p}" for i, p in enumerate(self._member.controllers, 1))
        return "voters=" + ",".join(voters)

    def _format(self) -> None:
        cluster_id = new_cluster_id() if self._member is None else self._member.cluster_id
        command = [
            "format",
            *(["--standalone"] if self._member is None else []),
            f"--cluster-id={cluster_id}",
            "-c",
            str(self._properties),
        ]
        with self._log.open("ab") as log:
            ended = subprocess.run(
                self._java("kafka.tools.StorageTool", *command),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                timeout=FORMAT_TIMEOUT_S,
            )
        if ended.returncode:
            raise RuntimeError(f"Kafka's storage can't be formatted: {self._tail()}")

    def _java(self, main: str, *arguments: str) -> list[str]:
        launcher = cache.java()
        assert launcher is not None  # available() looked
        heap = f"-Xmx{HEAP_MIB if self._member is None else CLUSTER_HEAP_MIB}m"
        return [str(launcher), heap, "-cp", cache.classpath("kafka"), main, *arguments]

    def _died(self) -> str | None:
        code = self._process.poll()
        return None if code is None else f"exit {code}: {self._tail()}"

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            return self._log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARS:]
        return f"nothing in {os.fspath(self._log)}"


class KafkaCluster:
    """Three Kafka nodes, each broker and controller. Topics have a copy on each; records are on two at least.

    Args:
        data_dir: Where they keep everything.
        settings: Further server properties of each, by name.
    """

    def __init__(self, data_dir: Path, settings: dict[str, str] | None = None) -> None:
        self._cluster_id, self._settings = new_cluster_id(), settings or {}
        self._data_dir = Path(data_dir)
        ports = [free_port() for _ in range(2 * NODES)]
        self._ports, self._controllers = ports[:NODES], tuple(ports[NODES:])
        self.nodes: list[KafkaProcess] = []
        try:
            for number in range(NODES):
                self.nodes.append(self._started(number))
            for node in self.nodes:
                node.wait()
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """Of all nodes: whoever is given it needs only one of them to answer."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def kill(self, number: int) -> None:
        """End a node at once (SIGKILL)."""
        self.nodes[number].kill()

    def start(self, number: int) -> None:
        """Start a node again that was killed, and wait until it answers."""
        self.nodes[number] = self._started(number)
        self.nodes[number].wait()

    def stop(self) -> None:
        """End all nodes at once: without most of the others, none can leave in order."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _started(self, number: int) -> KafkaProcess:
        member = Member(number + 1, self._cluster_id, self._controllers)
        folder = self._data_dir / f"node-{member.node_id}"
        return KafkaProcess(folder, self._ports[number], self._settings, member)
