"""Queries over committed views: `Views(app_or_directory).sql("SELECT …")`."""

from penstock.serve.views import Snapshot, Views

__all__ = ["Snapshot", "Views"]
