"""A schema registry that speaks Confluent's REST API and keeps everything in a topic of the log."""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.registry._refusals import Refusal
    from penstock.registry._served import registry_served
    from penstock.registry._server import PASSWORD, PORT, RegistryServer
    from penstock.registry._service import Registry
    from penstock.registry._store import LogStore, MemoryStore, Store
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "_refusals": ("Refusal",),
            "_served": ("registry_served",),
            "_server": ("PASSWORD", "PORT", "RegistryServer"),
            "_service": ("Registry",),
            "_store": ("LogStore", "MemoryStore", "Store"),
        },
    )

__all__ = [
    "PASSWORD",
    "PORT",
    "LogStore",
    "MemoryStore",
    "Refusal",
    "Registry",
    "RegistryServer",
    "Store",
    "registry_served",
]
