"""The live page: a Starlette app over committed views, and the server that runs it on loopback.

Nothing is built and nothing comes from elsewhere: the page is the hand-written files in `static`.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.web.api import ViewSource
    from penstock.web.app import create_app
    from penstock.web.board import StatusBoard
    from penstock.web.changes import changes_line
    from penstock.web.console import Console
    from penstock.web.guard import Guard
    from penstock.web.health import Health, State, judge
    from penstock.web.server import (
        PORT,
        MetricsServer,
        Server,
        check_password,
        is_loopback,
    )
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "api": ("ViewSource",),
            "app": ("create_app",),
            "changes": ("changes_line",),
            "guard": ("Guard",),
            "server": ("PORT", "MetricsServer", "Server", "check_password", "is_loopback"),
            "console": ("Console",),
            "board": ("StatusBoard",),
            "health": ("Health", "State", "judge"),
        },
    )

__all__ = [
    "PORT",
    "Console",
    "Guard",
    "Health",
    "MetricsServer",
    "Server",
    "State",
    "StatusBoard",
    "ViewSource",
    "changes_line",
    "check_password",
    "create_app",
    "is_loopback",
    "judge",
]
