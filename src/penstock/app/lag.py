"""How far a pipeline is behind its log: measured from outside, by asking the log and the committed version.

The engine knows what it has read, not what it should have: where it hangs, its own figures stay as they
were. So a thread of its own asks the log how far it reaches, with a limit of time, and compares.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.client import Client
from penstock.errors import BrokerError, PenstockError

__all__ = ["Measured", "Meter", "Waiting"]

EVERY_S: Final = 1.0  # between two looks
PATIENCE_S: Final = 2.0  # with a log that doesn't answer, before that is reported
ANSWER_S: Final = 5.0  # for one answer
PARTITIONS_S: Final = 10.0  # between two questions which partitions the topics have
BEHIND_US: Final = 5_000_000  # a delay of batches that follow each other, on a busy machine as well
SAMPLES_MAX: Final = 512

Partition = tuple[str, int]
Offsets = Mapping[Partition, int]


class Waiting:
    """What the log holds and the views don't, and since when. Pure: all it knows is passed in."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Offsets]] = deque()
        self.lag: dict[str, int] = {}
        self.behind_us: int | None = None
        self.abreast_us: int | None = None

    def look(self, now_us: int, ends: Offsets, read: Offsets) -> None:
        """Takes one look.

        Args:
            now_us: when it was.
            ends: by partition, the offset after the last record.
            read: by partition, the offset up to which the committed views have read.
        """
        self.lag = {}
        for (topic, partition), end in ends.items():
            more = max(0, end - read.get((topic, partition), end))
            self.lag[topic] = self.lag.get(topic, 0) + more
        if (
            len(self._samples) == SAMPLES_MAX
        ):  # the oldest says since when; of the others some will do
            self._samples = deque(list(self._samples)[::2])
        self._samples.append((now_us, ends))
        while self._samples and _covers(read, self._samples[0][1]):
            self._samples.popleft()
        self.behind_us = self._samples[0][0] if self._samples else None
        if self.behind_us is not None and now_us - self.behind_us > BEHIND_US:
            self.abreast_us = None
        elif self.abreast_us is None:
            self.abreast_us = now_us


def _covers(read: Offsets, ends: Offsets) -> bool:
    return all(read.get(partition, end) >= end for partition, end in ends.items())


@dataclass(frozen=True)
class Measured:
    """What a `Meter` has found so far; see `Facts`."""

    asked_us: int
    answered_us: int | None = None
    answering_us: int | None = None
    error: str | None = None
    lag: dict[str, int] | None = None
    behind_us: int | None = None
    abreast_us: int | None = None


class Meter:
    """Asks a log once a second how far it reaches, until `close`.

    Args:
        log: its address.
        topics: that the pipeline reads.
        read: gives the offsets of the committed version, by topic and partition's number as text;
            nothing before there is one.
        clock_us: the wall clock.
    """

    def __init__(
        self,
        log: str,
        topics: Iterable[str],
        read: Callable[[], Mapping[str, Mapping[str, int]]],
        clock_us: Callable[[], int],
    ) -> None:
        self._log, self._topics, self._read, self._clock_us = log, list(topics), read, clock_us
        self._waiting = Waiting()
        self._first: dict[Partition, int] = {}
        self.measured = Measured(clock_us())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-lag", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Asks no more; an answer that is waited for is not waited for here."""
        self._stop.set()

    def _run(self) -> None:
        client: Client | None = None
        while not self._stop.is_set():
            try:
                client = client or Client(
                    self._log, "penstock-lag", patience_s=PATIENCE_S, timeout_s=ANSWER_S
                )
                self._look(client)
            except (OSError, PenstockError) as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - what measures must not end for what it measures
                self._failed(error)
            self._stop.wait(EVERY_S)
        if client is not None:
            client.close()

    def _look(self, client: Client) -> None:
        found = client.end_offsets_many(self._topics, partitions_age_s=PARTITIONS_S)
        now_us = self._clock_us()
        ends = {(topic, p): end for topic, parts in found.items() for p, end in parts.items()}
        self._waiting.look(now_us, ends, self._offsets(client, ends))
        before, waiting = self.measured, self._waiting
        self.measured = Measured(
            asked_us=before.asked_us,
            answered_us=now_us,
            answering_us=now_us if before.error or not before.answering_us else before.answering_us,
            lag=dict(waiting.lag),
            behind_us=waiting.behind_us,
            abreast_us=waiting.abreast_us,
        )

    def _offsets(self, client: Client, ends: Iterable[Partition]) -> Offsets:
        """What the views have read; a partition that they know nothing of, up to its first record."""
        committed = {(t, int(p)): o for t, parts in self._read().items() for p, o in parts.items()}
        for topic in {topic for topic, _ in set(ends) - set(committed) - set(self._first)}:
            first = client.offsets(topic, "earliest")
            self._first |= {(topic, p): offset for p, offset in first.items()}
        return self._first | committed

    def _failed(self, error: Exception) -> None:
        # An answer that refuses is one: the topics may not be there yet.
        if isinstance(error, BrokerError) and error.code != 0:
            self.measured = Measured(
                self.measured.asked_us, self._clock_us(), self._clock_us(), str(error)
            )
            return
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        self.measured = replace(self.measured, error=reason)
