"""Requests that are almost right: random fields by Kafka's own tables, then bytes changed by chance."""

from __future__ import annotations

import dataclasses
import random
import struct
import typing
import uuid
from typing import Any

from penstock.wire import batches, messages
from penstock.wire.kafka import EntityType, api_key_map, load_payload_module

WORDS = [
    "t",
    "t",
    "g",
    "g",
    "nowhere",
    "",
    "x",
    "range",
    "consumer",
    "m" * 300,
    "é",
    "__share",
    "*",
]
NUMBERS = [0, 0, 0, 1, 1, 2, 3, -1, -2, 5, 99, 127, -128]
INTERESTING = [0, 1, -1, -2, 127, 255, 32767, -32768, 65535, 2**31 - 1, -(2**31), 2**31 - 8]
ELEMENTS_MAX = 3
DEPTH_MAX = 5
WAIT_FIELDS = {"max_wait", "timeout", "rebalance_timeout", "session_timeout"}
COUNT_FIELDS = {"num_partitions", "count"}


def entity(api_key: int, version: int) -> Any:
    """The table of a request's fields."""
    name = api_key_map[api_key]
    module = load_payload_module(api_key, version, EntityType.request)
    return getattr(module, "".join(word.capitalize() for word in name.split("_")) + "Request")


def fields_of(kind: Any, chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """Random fields that fit the table."""
    hints = typing.get_type_hints(kind)
    return {
        one.name: value_of(one, hints[one.name], chance, depth)
        for one in dataclasses.fields(kind)
        if chance.random() < 0.97
    }


def value_of(one: Any, hint: Any, chance: random.Random, depth: int) -> Any:
    """A random value of a field."""
    bare, nullable = messages._unwrap(hint)
    if nullable and chance.random() < 0.2:
        return None
    if typing.get_origin(bare) is tuple:
        element, _ = messages._unwrap(typing.get_args(bare)[0])
        count = chance.choice([0, 1, 1, 2, ELEMENTS_MAX]) if depth < DEPTH_MAX else 0
        if dataclasses.is_dataclass(element):
            return [fields_of(element, chance, depth + 1) for _ in range(count)]
        return [primitive(one, chance) for _ in range(count)]
    if dataclasses.is_dataclass(bare):
        return fields_of(bare, chance, depth + 1)
    return primitive(one, chance)


def primitive(one: Any, chance: random.Random) -> Any:
    """A random number, text, or bytes."""
    kind = one.metadata["kafka_type"]
    if one.name in WAIT_FIELDS and chance.random() < 0.9:
        return chance.choice([0, 10_000, 30_000])
    if one.name in COUNT_FIELDS:
        return chance.choice([1, 2, 0, -1, 2**31 - 1])
    match kind:
        case "string":
            return chance.choice(WORDS)
        case "bool":
            return chance.random() < 0.5
        case "uuid":
            return uuid.UUID(int=chance.choice([0, 1, chance.getrandbits(128)]))
        case "bytes" | "records":
            return chance.choice([b"", chance.randbytes(20), a_batch(chance)])
        case "float64":
            return chance.choice([0.0, -1.0, 1e300, float("nan")])
    bits = messages._NUMBERS[kind].size * 8
    value = chance.choice(NUMBERS) if chance.random() < 0.9 else chance.getrandbits(bits - 1)
    if kind.startswith("u"):
        return abs(value) % (1 << bits)
    return max(min(value, (1 << (bits - 1)) - 1), -(1 << (bits - 1)))


def a_batch(chance: random.Random) -> bytes:
    """A batch, sound or nearly so; the checksum mostly fits."""
    records = [(b"k", chance.randbytes(chance.randrange(30))) for _ in range(chance.randint(1, 4))]
    batch = batches.build(
        records,
        timestamps_ms=[1000] * len(records),
        codec=chance.choice(["none", "gzip", "snappy", "lz4", "zstd"]),
        producer_id=chance.choice([-1, -1, 1, 2**62]),
        producer_epoch=chance.choice([-1, 0, 1]),
        base_sequence=chance.choice([-1, 0, 1, 2**31 - 1]),
        attributes=chance.choice([0, 0, 0, 0x10, 0x20, 0x30, 0x08]),
    )
    if chance.random() < 0.6:
        batch = mutated(batch, chance)
        if len(batch) >= batches.HEADER_BYTES and chance.random() < 0.7:
            reseal(batch)
    return bytes(batch)


def reseal(batch: bytearray) -> None:
    """Gives a batch the length and the checksum that its bytes have."""
    import crc32c

    struct.pack_into(">i", batch, 8, len(batch) - batches.PREFIX_BYTES)
    batch[16] = 2
    struct.pack_into(">I", batch, 17, crc32c.crc32c(memoryview(batch)[21:]))


def mutated(data: bytes | bytearray, chance: random.Random) -> bytearray:
    """The bytes with a few changes."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                del out[at:]
            case 2:
                out[at:at] = chance.randbytes(chance.randint(1, 8))
            case 3:
                number, size = chance.choice(INTERESTING), chance.choice([2, 4, 8])
                out[at : at + size] = (number % (1 << (8 * size))).to_bytes(size, "big")
            case 4:
                out[at:at] = out[at : at + chance.randint(1, 40)]
            case _:
                out[at : at + chance.randint(1, 5)] = b"\xff\xff\xff\xff\x0f"
    return out


def a_request(api_key: int, version: int, chance: random.Random) -> tuple[bytes, bool]:
    """A request's body, and whether its header has tags."""
    codec = messages.request_codec(api_key, version)
    try:
        body = codec.encode(fields_of(entity(api_key, version), chance))
    except Exception:  # null where there may be none: any bytes will do
        body = bytearray(chance.randbytes(chance.randrange(60)))
    if chance.random() < 0.7:
        body = mutated(body, chance)
    return bytes(body), codec.flexible
