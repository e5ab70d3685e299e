"""What the broker answers, by subject. Produce and Fetch are elsewhere: they are written by hand.

A handler takes a `Call` and the request's fields and gives the answer's fields (see
`penstock.wire.messages`); it is a coroutine where it must wait. `API_TABLE` says which versions are
served; only these are advertised.
"""

from __future__ import annotations

from penstock.broker.handlers import (
    cluster,
    configs,
    consumer_groups,
    group_admin,
    groups,
    offsets,
    placement,
    producer_ids,
    quotas,
    records,
    security,
    share,
    topic_admin,
    transactions,
)
from penstock.broker.handlers.base import Api, Call, Fields

__all__ = ["API_TABLE", "Api", "Call", "Fields"]

API_TABLE: dict[int, Api] = {
    api.key: api
    for module in (
        cluster,
        topic_admin,
        configs,
        records,
        offsets,
        placement,
        groups,
        consumer_groups,
        group_admin,
        producer_ids,
        share,
        security,
        quotas,
        transactions,
    )
    for api in module.APIS
}
