"""The live page: a Starlette app over committed views, and the server that runs it on loopback.

Nothing is built and nothing comes from elsewhere: the page is the hand-written files in `static`.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.web._api import ViewSource
    from penstock.web._app import create_app
    from penstock.web._changes import changes_line
    from penstock.web._guard import Guard
    from penstock.web._server import (
        PORT,
        MetricsServer,
        Server,
        check_password,
        is_loopback,
    )
    from penstock.web.board import StatusBoard
    from penstock.web.console import Console
    from penstock.web.health import Health, State, judge
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "_api": ("ViewSource",),
            "_app": ("create_app",),
            "_changes": ("changes_line",),
            "_guard": ("Guard",),
            "_server": ("PORT", "MetricsServer", "Server", "check_password", "is_loopback"),
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
