"""`App`: a pipeline that can run, with its embedded broker."""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.embedded import EmbeddedBroker, address_of
    from penstock.app.facts import Facts, Found, read_facts
    from penstock.app.nodes import read_graph
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "app": ("App",),
            "embedded": (
                "EmbeddedBroker",
                "address_of",
            ),
            "facts": (
                "Facts",
                "Found",
                "read_facts",
            ),
            "nodes": ("read_graph",),
        },
    )

__all__ = ["App", "EmbeddedBroker", "Facts", "Found", "address_of", "read_facts", "read_graph"]
