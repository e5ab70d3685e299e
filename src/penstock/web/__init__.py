"""The live page: a Starlette app over committed views, and the server that runs it on loopback.

Nothing is built and nothing comes from elsewhere: the page is the hand-written files in `static`.
"""

from penstock.web._app import ViewSource, create_app
from penstock.web._json import kind, plain_values
from penstock.web._server import PORT, Server
from penstock.web.board import StatusBoard

__all__ = ["PORT", "Server", "StatusBoard", "ViewSource", "create_app", "kind", "plain_values"]
