"""The console: what lies in the log beneath a page, and what may be done with it.

    Records     a page of a topic's records, from an end, an offset or a time, with search
    LogView     topics, groups and dead letters of one broker, as plain values
    versions_of a pipeline's versions and savepoints
    Console     the same as JSON endpoints

Every question is put to the broker again, by a client of its own and within a limit of time: the page
holds no state that could be wrong.
"""

from penstock.web.console.api import Console
from penstock.web.console.log import LogView
from penstock.web.console.versions import versions_of

__all__ = ["Console", "LogView", "versions_of"]
