"""Dead letters of one lane's batch, on their way to the topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from penstock.engine.letters.letters import Letters, headers_of
from penstock.engine.log import Outgoing
from penstock.engine.record.plan import Plan

__all__ = ["LetterBox", "letters_outgoing", "of_any"]

AT_ONCE: Final = 10_000
"""Letters of an origin that are written together: bounds memory, and how often is written."""


def of_any(topic: str, shard: int | str) -> str:
    """The name of the writer for letters of operators on a shard that have no writer of their own."""
    return f"{topic}/*/{shard}"


class LetterBox:
    """Takes dead letters in the order of a batch's work; writes them in counts that never differ.

    Args:
        topic: of dead letters.
        partitions: that it has.
        plan: of the batch.
        names: of operators, by their identity.
        send: writes records under the name of a writer.
    """

    def __init__(
        self,
        topic: str,
        partitions: int,
        plan: Plan,
        names: Mapping[str, str],
        send: Callable[[str, str, Outgoing], None],
    ) -> None:
        self.topic, self.partitions, self.plan = topic, partitions, plan
        self._names, self._send = names, send
        self.counts: dict[str, int] = defaultdict(
            int
        )  # by the topic, or the operator, that they are of
        self._waiting: dict[str, list[Letters]] = defaultdict(list)  # by origin
        self._rows: dict[str, list[tuple[str, Letters]]] = defaultdict(list)  # likewise

    def take(self, topic: str, origin: str, letters: list[Letters]) -> None:
        """Takes letters of later offsets than before.

        Args:
            topic: what they are counted under: a topic, or an operator's name.
            origin: whose they are: `topic/partition`, or an operator's `id/shard`.
            letters: of one chunk, or one step.
        """
        letters = [some for some in letters if len(some)]
        if not letters:
            return
        come = Letters.joined(letters)
        self.counts[topic] += len(come)
        self._waiting[origin].append(come)
        count = sum(map(len, self._waiting[origin]))
        if count >= AT_ONCE:
            waiting, at = Letters.joined(self._waiting.pop(origin)), 0
            for at in range(0, count - AT_ONCE + 1, AT_ONCE):
                self._write(origin, waiting.slice(at, at + AT_ONCE))
            self._waiting[origin].append(waiting.slice(at + AT_ONCE, count))

    def take_rows(self, topic: str, origin: str, letters: Letters | None) -> None:
        """Takes letters of rows that were no records; they are written when the batch ends.

        Args:
            topic: as for `take`.
            origin: likewise.
            letters: of one origin of rows; None: there are none.
        """
        if letters is not None and len(letters):
            self._rows[origin].append((topic, letters))

    def named(self, maker: str) -> str:
        """What an operator of an identity is called; a topic, as it is."""
        return self._names.get(maker, maker)

    def close(self) -> None:
        """Writes what is left."""
        for origin, parts in self._waiting.items():
            left = Letters.joined(parts)
            if len(left):
                self._write(origin, left)
        for origin, some in self._rows.items():
            for topic, one in some:
                self.counts[topic] += len(one)
            rows = Letters.joined([one for _, one in some]).one_each()
            for at in range(0, len(rows), AT_ONCE):
                self._write(origin, rows.slice(at, at + AT_ONCE))

    def _write(self, origin: str, letters: Letters) -> None:
        maker, _, part = origin.rpartition("/")
        outgoing = letters_outgoing(
            f"{self.named(maker)}/{part}",
            letters,
            partitions=self.partitions,
            wall_us=self.plan.wall_us,
        )
        writer = f"{self.topic}/{origin}"
        if writer not in self.plan.writers:
            writer = of_any(self.topic, part)
        self._send(self.topic, writer, outgoing)


def letters_outgoing(origin: str, letters: Letters, *, partitions: int, wall_us: int) -> Outgoing:
    """Dead letters as records: key and value as they were, the rest as headers."""
    topic, _, partition = origin.rpartition("/")
    return Outgoing(
        partition=int(partition) % partitions,
        keys=letters.keys,
        values=letters.values,
        timestamps_ms=np.minimum(letters.timestamps_ms, wall_us // 1_000),
        headers=headers_of(letters, topic, partition),
    )
