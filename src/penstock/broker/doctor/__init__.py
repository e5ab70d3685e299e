"""Examines a data directory that no broker serves: reads all of it, changes nothing, explains what it
finds.

    report = examine(Path("shop.penstock"))
    report.is_sound, report.findings, report.topics

A finding is a *note* (worth knowing), a *warning* (the next start deals with it; nothing shows whether
what is lost was ever acknowledged), or *damage* (records that were durable are gone or changed).
`repair` does only what is safe: what the next start would do anyway, and the removal of files that
nothing refers to. It ends with a report whatever the bytes are.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.broker.doctor.examination import examine, is_data_directory, repair
    from penstock.broker.doctor.report import Finding, Level, Report, TopicSummary
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "examination": ("examine", "is_data_directory", "repair"),
            "report": ("Finding", "Level", "Report", "TopicSummary"),
        },
    )

__all__ = [
    "Finding",
    "Level",
    "Report",
    "TopicSummary",
    "examine",
    "is_data_directory",
    "repair",
]
