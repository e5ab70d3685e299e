"""A client for brokers that speak the Kafka protocol: columns in, columns out.

    Client      topics, offsets, consumer groups, producers' state
    Reader      ranges of partitions as columns
    Producer    columns to partitions, each record once
    TransactionalProducer   the same in several partitions, with offsets of groups, all or nothing

Blocking sockets and no threads: an object belongs to the thread that uses it. Restarting brokers
and moving leaders are waited for; `patience_s` says for how long.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.client.client import Client, Lag, ProducerState
    from penstock.client.network.security import Security
    from penstock.client.producer import Producer
    from penstock.client.reader import Reader
    from penstock.client.transactions import TransactionalProducer
else:  # administration needs neither Arrow nor Numba, records do
    __getattr__ = lazy_names(
        __name__,
        {
            "client": ("Client", "Lag", "ProducerState"),
            "network.security": ("Security",),
            "producer": ("Producer",),
            "reader": ("Reader",),
            "transactions": ("TransactionalProducer",),
        },
    )

__all__ = [
    "Client",
    "Lag",
    "Producer",
    "ProducerState",
    "Reader",
    "Security",
    "TransactionalProducer",
]
