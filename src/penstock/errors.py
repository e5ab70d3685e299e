"""Every exception that Penstock raises on purpose.

    PenstockError
    ├── UserError               the program or the command line is wrong: fix it and run again
    │   ├── SchemaError         a schema text, a column or a type does not fit
    │   ├── FlowError           the pipeline's graph does not make sense
    │   ├── QueryError          a query over views cannot be answered
    │   └── SearchError         a stored search cannot be read
    ├── CorruptError            bytes on disk or on the wire are not what was written
    ├── ProtocolError           a peer broke the Kafka protocol
    ├── BrokerError             a broker answered with an error code, or can't be reached
    ├── LimitError              a named limit was reached; nothing was lost
    ├── JobLostError            this worker no longer holds the lock of its job
    ├── FencedError             a newer owner of the pipeline has taken over
    └── SetupError              something outside the program is missing (Java, a port, a directory)

A message says what was expected, what was found, and what to do.
"""

from __future__ import annotations

from typing import Self

__all__ = [
    "BrokerError",
    "CorruptError",
    "FencedError",
    "FlowError",
    "JobLostError",
    "LimitError",
    "PenstockError",
    "ProtocolError",
    "QueryError",
    "SchemaError",
    "SearchError",
    "SetupError",
    "UserError",
]


class PenstockError(Exception):
    """Base of all of Penstock's own exceptions.

    Attributes:
        retriable: whether a retry may succeed later without a change.
    """

    retriable: bool = False

    def reworded(self, text: str) -> Self:
        """The same error with another text, such as one that adds a place.

        Classes may take other arguments than a text, so `__init__` isn't called again.
        """
        made = type(self).__new__(type(self), text)
        made.__dict__.update(self.__dict__)
        return made


class UserError(PenstockError):
    """The program, the command line or a file of the user's is wrong.

    Attributes:
        in_sql: the message for those who wrote SQL, where it names what Python has; None: the same.
    """

    in_sql: str | None = None

    def but_in_sql(self, text: str) -> Self:
        """The same error, with other words for those who wrote SQL."""
        self.in_sql = text
        return self


class SchemaError(UserError):
    """A schema text, a column name or a type does not fit.

    Attributes:
        at: where in a query's text, from 0; None: it isn't known.
        near: the word of a query at which DuckDB stopped, and how many like it come before it.
    """

    at: int | None = None
    near: tuple[str, int] | None = None


class FlowError(UserError):
    """The pipeline's graph does not make sense."""


class QueryError(UserError):
    """A query over committed views cannot be answered."""


class SearchError(UserError):
    """A stored search cannot be read.

    Attributes:
        at: where in its text, from 0.
    """

    def __init__(self, message: str, at: int = 0) -> None:
        super().__init__(message)
        self.at = at


class CorruptError(PenstockError):
    """Bytes on disk or on the wire are not what was written."""


class ProtocolError(PenstockError):
    """A peer broke the Kafka protocol: a truncated, absurd or contradictory message."""


class BrokerError(PenstockError):
    """A broker answered with an error code, or it can't be reached.

    Attributes:
        code: Kafka's error code, 0 where there was no answer.
    """

    def __init__(self, message: str, *, code: int = 0, retriable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retriable = retriable


class LimitError(PenstockError):
    """A named limit was reached; nothing was lost."""


class JobLostError(PenstockError):
    """This worker no longer holds its job: the lock expired, or the connection broke."""


class FencedError(PenstockError):
    """A newer owner of the pipeline has taken over; this one must stop and write nothing more."""


class SetupError(PenstockError):
    """Something outside the program is missing: Java, a free port, a writable directory."""
