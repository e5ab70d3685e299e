"""A schema registry that speaks Confluent's REST API and keeps everything in a topic of the log."""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.registry.refusals import Refusal
    from penstock.registry.served import registry_served
    from penstock.registry.server import PASSWORD, PORT, RegistryServer
    from penstock.registry.service import Registry
    from penstock.registry.store import LogStore, MemoryStore, Store
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "refusals": ("Refusal",),
            "served": ("registry_served",),
            "server": ("PASSWORD", "PORT", "RegistryServer"),
            "service": ("Registry",),
            "store": ("LogStore", "MemoryStore", "Store"),
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
