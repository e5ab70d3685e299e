"""Ids for idempotent producers."""

from __future__ import annotations

from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields
from penstock.wire.kafka import ErrorCode

__all__ = ["APIS"]


def init_producer_id(call: Call, fields: Fields) -> Fields:
    """A new id. Transactions are refused: nothing here would carry them out."""
    if fields["transactional_id"] is not None:
        return {
            "error_code": ErrorCode.transactional_id_authorization_failed,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    try:
        producer_id = call.broker.next_producer_id()
    except OSError:
        return {
            "error_code": ErrorCode.kafka_storage_error,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    return {"producer_id": producer_id, "producer_epoch": 0}


APIS: Final = (Api(22, 0, 5, init_producer_id),)
