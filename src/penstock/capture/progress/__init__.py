"""How far a database was captured, and the log's side of that."""

from penstock.capture.progress.log import Log
from penstock.capture.progress.state import (
    KIND,
    POSITION,
    REQUEST,
    Control,
    State,
    Watched,
    control_topic,
    last_value,
    letters_topic,
    load,
    schemas_topic,
    state_topic,
    stored,
    versions,
)

__all__ = [
    "KIND",
    "POSITION",
    "REQUEST",
    "Control",
    "Log",
    "State",
    "Watched",
    "control_topic",
    "last_value",
    "letters_topic",
    "load",
    "schemas_topic",
    "state_topic",
    "stored",
    "versions",
]
