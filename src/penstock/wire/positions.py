"""Where records are, as a write returns it, for later reads (`clicks-0:41`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import UserError

__all__ = ["Position"]

_POSITION: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>\d+):(?P<offset>\d+)")


@dataclass(frozen=True)
class Position:
    """Where a record is: what a write returns, `TOPIC-PARTITION:OFFSET`."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def parse_all(cls, token: str) -> tuple[Position, ...]:
        """The positions in a token, which commas part.

        Raises:
            UserError: it is none.

        >>> Position.parse_all("clicks-0:41")
        (Position(topic='clicks', partition=0, offset=41),)
        """
        found = []
        for part in token.split(","):
            match = _POSITION.fullmatch(part.strip())
            if match is None:
                raise UserError(
                    "expected positions such as clicks-0:41 (topic, partition, offset), with commas "
                    f"between them; found {token!r}"
                )
            found.append(cls(match["topic"], int(match["partition"]), int(match["offset"])))
        return tuple(found)

    def is_in(self, offsets: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether who has read up to these offsets, by topic and partition, has read this record.

        Raises:
            UserError: the topic is none of those that are read.
        """
        if self.topic not in offsets:
            raise UserError(
                f"expected a position in one of the topics {', '.join(sorted(offsets)) or 'none'}, which "
                f"are read; found {self.topic!r}"
            )
        return offsets[self.topic].get(str(self.partition), 0) > self.offset
