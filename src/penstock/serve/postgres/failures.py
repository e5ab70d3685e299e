"""What a client receives when something went wrong: PostgreSQL's codes of our errors, and warnings."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import LimitError, PenstockError
from penstock.serve.answers import Answer
from penstock.serve.postgres import messages
from penstock.serve.postgres.commands import Refused

__all__ = ["failure", "too_much", "warnings_of"]

SILENT: Final = ("error", "fatal", "panic")
"""Of `client_min_messages`: the client wants no warnings."""

_CODES: Final = (
    (
        re.compile(
            r"expected one of the views|does not exist.*relation|relation \S+ does not exist"
        ),
        "42P01",
    ),
    (re.compile(r"that is kept; found|isn't kept"), "72000"),
    (re.compile(r"(Function|Macro)\b.* does not exist|No function matches"), "42883"),
    (re.compile(r"Referenced column|not found in FROM|does not have a column"), "42703"),
    (re.compile(r"Conversion Error|Invalid Input|invalid input"), "22P02"),
    (re.compile(r"Out of Range|out of range"), "22003"),
    (re.compile(r"must appear in the GROUP BY"), "42803"),
    (re.compile(r"Ambiguous reference"), "42702"),
    (re.compile(r"Binder Error"), "42804"),
    (
        re.compile(
            r"expected a SELECT|Parser Error|expected one SELECT|expected AS OF|expected SUBSCRIBE"
        ),
        "42601",
    ),
)


def failure(error: Exception, *, cancelled: bool, is_late: bool = False) -> bytes:
    """The message of an error.

    Args:
        error: what was raised.
        cancelled: whether the client has asked to cancel the statement.
        is_late: whether it has taken longer than `statement_timeout`.
    """
    if isinstance(error, Refused):
        return messages.error(error.code, str(error), routine=error.routine)
    if cancelled:
        return messages.error("57014", "expected an answer; found that the client cancelled it")
    if is_late:
        reason = "expected an answer within statement_timeout; found that it takes longer"
        return messages.error("57014", reason, routine="ProcessInterrupts")
    return messages.error(_code(error), str(error) or type(error).__name__)


def warnings_of(answer: Answer, least: str) -> bytes:
    """What failed in the views that an answer was read from, a message each.

    Args:
        answer: of views.
        least: the client's `client_min_messages`; empty: PostgreSQL's own.
    """
    return b"" if least.lower() in SILENT else b"".join(map(messages.warning, answer.warnings))


def too_much() -> Refused:
    """The error of an answer that there is no room for."""
    return Refused(
        "53200",
        "expected memory for the answer; found that all sessions together keep too much "
        "(SESSIONS_BYTES_MAX). Ask again, request less at once, or close cursors",
    )


def _code(error: Exception) -> str:
    text = str(error)
    if isinstance(error, LimitError):
        return "53200" if "memory" in text else "54000" if "ANSWER_BYTES_MAX" in text else "57014"
    if isinstance(error, ValueError) and not isinstance(error, PenstockError):
        return "22P02"
    return next((code for pattern, code in _CODES if pattern.search(text)), "XX000")
