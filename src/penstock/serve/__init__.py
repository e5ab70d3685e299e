"""Queries over committed views: `Views(app_or_directory).sql("SELECT …")`.

`Queries` answers those of people whom nobody knows: in processes of their own, with limits.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.serve.answers import Answer, Failure
    from penstock.serve.live import Live
    from penstock.serve.parts import ViewPart
    from penstock.serve.places import open_store, state_of
    from penstock.serve.queries import Queries, QueryLimits
    from penstock.serve.questions import Question
    from penstock.serve.views import Snapshot, Views
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "answers": ("Answer", "Failure"),
            "live": ("Live",),
            "parts": ("ViewPart",),
            "places": ("open_store", "state_of"),
            "queries": (
                "Queries",
                "QueryLimits",
            ),
            "questions": ("Question",),
            "views": (
                "Snapshot",
                "Views",
            ),
        },
    )

__all__ = [
    "Answer",
    "Failure",
    "Live",
    "Queries",
    "QueryLimits",
    "Question",
    "Snapshot",
    "ViewPart",
    "Views",
    "open_store",
    "state_of",
]
