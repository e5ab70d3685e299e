"""`Closing`: what is open until it is closed, or to the end of a `with`."""

from __future__ import annotations

from typing import Self

__all__ = ["Closing"]


class Closing:
    """Something with connections, files or threads; `with` closes it at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it; nothing else may follow."""
        raise NotImplementedError
