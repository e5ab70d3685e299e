"""The log server: one process that owns a data directory and speaks Kafka's protocol.

    await server.serve(config.BrokerConfig(data=Path("shop.penstock")))      # until SIGTERM
    python -m penstock.broker --listen 127.0.0.1:9092 --data shop.penstock
    with BrokerProcess("shop.penstock") as broker: ...         # as a child process

The data directory:

    LOCK                     held by the process that serves the directory; names its id and its listeners
    cluster.json             the cluster's id
    producer_ids.json        the first producer id that was not reserved yet
    settings.json            what clients have set of the broker's settings
    topics/NAME/topic.json   a topic's id, partition count and settings
    topics/NAME/N/           partition N (see `penstock.log.partition`)
    groups/offsets.journal   committed offsets (see `penstock.broker.groups.offsets`)
    groups/members.journal   groups and their members (see `penstock.broker.groups.store`)
    transactions/            state.journal: transactional ids (see `penstock.broker.transactions.coordinator`)
    share/                   state.journal: what share groups have settled (see `penstock.broker.share`)
    security/                users, access control lists, quotas (see `penstock.broker.security`)
    trash/                   deleted topics on their way out

Guarantees: `acks=all` is answered after an fdatasync that many requests share; `acks=1` once the
batch is in the page cache, which survives the death of the process but not of the machine. A
consumer sees a batch once it is in the page cache. There is no replication: for that, run Kafka;
clients only change an address.
"""

from __future__ import annotations

from penstock.broker.process import BrokerProcess

__all__ = ["BrokerProcess"]
