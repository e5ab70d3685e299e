"""The log server: one process that owns a data directory and speaks Kafka's protocol.

    await serve(BrokerConfig(data=Path("shop.penstock")))      # until SIGTERM
    python -m penstock.broker --listen 127.0.0.1:9092 --data shop.penstock
    with BrokerProcess("shop.penstock") as broker: ...         # as a child process

The data directory:

    LOCK                     held by the process that serves the directory; names its id
    cluster.json             the cluster's id
    producer_ids.json        the first producer id that was not reserved yet
    topics/NAME/topic.json   a topic's id, partition count and settings
    topics/NAME/N/           partition N (see `penstock.log.partition`)
    groups/offsets.journal   committed offsets (see `penstock.broker.group_offsets`)
    groups/members.journal   groups and their members (see `penstock.broker.group_store`)
    transactions/            state.journal: transactional ids (see `penstock.broker.coordinator`)
    share/                   state.journal: what share groups have settled (see `penstock.broker.share`)
    security/                users, access control lists, quotas (see `penstock.broker.security`)
    trash/                   deleted topics on their way out

Guarantees: `acks=all` is answered after an fdatasync that many requests share; `acks=1` once the
batch is in the page cache, which survives the death of the process but not of the machine. A
consumer sees a batch once it is in the page cache. There is no replication: for that, run Kafka;
clients only change an address.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.broker.process import BrokerProcess

if TYPE_CHECKING:
    from penstock.broker.config import BrokerConfig
    from penstock.broker.server import Broker, serve

__all__ = ["Broker", "BrokerConfig", "BrokerProcess", "serve"]

_HOMES = {"Broker": "server", "BrokerConfig": "config", "serve": "server"}


def __getattr__(name: str) -> Any:
    """Imports the server only where it runs: who starts it as a child needs little."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
