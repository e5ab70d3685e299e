"""Queries over committed views: `Views(app_or_directory).sql("SELECT …")`.

`Queries` answers those of people whom nobody knows: in processes of their own, with limits.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.serve.live import Live
    from penstock.serve.parts import ViewPart
    from penstock.serve.queries import Queries, QueryLimits
    from penstock.serve.questions import Question
    from penstock.serve.views import Answer, Snapshot, Views, state_of
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "live": ("Live",),
            "parts": ("ViewPart",),
            "queries": (
                "Queries",
                "QueryLimits",
            ),
            "questions": ("Question",),
            "views": (
                "Answer",
                "Snapshot",
                "Views",
                "state_of",
            ),
        },
    )

__all__ = [
    "Answer",
    "Live",
    "Queries",
    "QueryLimits",
    "Question",
    "Snapshot",
    "ViewPart",
    "Views",
    "state_of",
]
