"""Ids and epochs of producers: InitProducerId."""

from __future__ import annotations

from typing import Final

from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.handlers.transactions import carry_out, older
from penstock.broker.transactions.machine import NO_EPOCH, NO_ID, Answer
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["APIS"]

FENCED_FROM: Final = 4
"""Version from which on an answer may say that the producer is fenced."""


async def init_producer_id(call: Call, fields: Fields) -> Fields:
    """A new id; for a transactional id its own, with an epoch that fences the previous producer."""
    broker, transactional_id = call.broker, fields["transactional_id"]
    try:
        if transactional_id is None:
            return {"producer_id": broker.next_producer_id(), "producer_epoch": 0}
        producer_id, epoch = fields.get("producer_id", NO_ID), fields.get("producer_epoch", -1)
        if (producer_id == NO_ID) is not (epoch == NO_EPOCH):
            answer = Answer(ErrorCode.INVALID_REQUEST)
        else:
            answer = broker.transactions.machine.init(
                broker.clock_ms(),
                transactional_id,
                fields["transaction_timeout"],
                None if producer_id == NO_ID else (producer_id, epoch),
            )
    except OSError:
        code = ErrorCode.KAFKA_STORAGE_ERROR
        return {"error_code": code, "producer_id": NO_ID, "producer_epoch": NO_EPOCH}
    answer = await carry_out(call, answer)
    return {
        "error_code": older(answer.code, knows_fenced=call.version >= FENCED_FROM),
        "producer_id": answer.producer_id,
        "producer_epoch": answer.epoch,
    }


APIS: Final = (Api(ApiKey.INIT_PRODUCER_ID, 0, 5, init_producer_id),)
