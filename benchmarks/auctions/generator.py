"""The events of Nexmark: people, their auctions, and bids, as its generator makes them.

Of 50 events one is a person, three are auctions and 46 are bids; half of the bids go to one hot auction, and
three of four auctions and bids to one hot person (Apache Beam's `NexmarkConfiguration`, whose defaults
these are). The same numbers always give the same events. Prices, names and texts are drawn by NumPy, so they
are not those of the Java generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

__all__ = ["EVENTS_PER_S", "SCHEMAS", "Events"]

START_MS = 1_700_000_000_000
EVENTS_PER_S = 10_000  # of event time
CHUNK_EVENTS = 500_000
PERSONS, AUCTIONS, CYCLE = 1, 3, 50  # of so many events; the others are bids
FIRST_ID = 1_000  # of people and auctions
FIRST_CATEGORY, CATEGORIES = 10, 5
ACTIVE_PEOPLE, IN_FLIGHT, LEAD = 1_000, 100, 10
HOT_AUCTIONS, HOT_PEOPLE = 2, 4  # all but one of so many go to the hot one
HOT_EVERY = 100  # ids
TEXTS = 4_096  # different ones of each kind
CHANNELS = 10_000
LAST_AFTER_MS = 3_600_000

_IDS = {"person": ("id",), "auction": ("id", "seller"), "bid": ("auction", "bidder")}

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond")
CITIES += ("Seattle", "Kent", "Cheyenne")
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter")
LAST_NAMES = (
    "Shultz",
    "Abrams",
    "Spencer",
    "White",
    "Bartels",
    "Walton",
    "Smith",
    "Jones",
    "Noris",
)
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")

SCHEMAS = {
    "person": "id BIGINT NOT NULL, name STRING, emailAddress STRING, creditCard STRING, city STRING, "
    "state STRING, dateTime TIMESTAMP NOT NULL, extra STRING",
    "auction": "id BIGINT NOT NULL, itemName STRING, description STRING, initialBid BIGINT, "
    "reserve BIGINT, dateTime TIMESTAMP NOT NULL, expires TIMESTAMP, seller BIGINT NOT NULL, "
    "category BIGINT, extra STRING",
    "bid": "auction BIGINT NOT NULL, bidder BIGINT NOT NULL, price BIGINT NOT NULL, channel STRING, "
    "url STRING, dateTime TIMESTAMP NOT NULL, extra STRING",
}
"""Of each topic, as Penstock reads it."""


@dataclass(frozen=True)
class Events:
    """A number of events.

    Attributes:
        rows: events of all three kinds.
        seed: of the generator.
    """

    rows: int
    seed: int = 7

    def chunks(self) -> Iterator[dict[str, pa.Table]]:
        """The events in order, by topic; times are milliseconds since 1970."""
        random = np.random.default_rng(self.seed)
        texts = _Texts(random)
        for first in range(0, self.rows, CHUNK_EVENTS):
            number = np.arange(first, min(self.rows, first + CHUNK_EVENTS), dtype=np.int64)
            place = number % CYCLE
            yield {
                "person": _persons(number[place < PERSONS], texts),
                "auction": _auctions(
                    number[(place >= PERSONS) & (place < PERSONS + AUCTIONS)], random, texts
                ),
                "bid": _bids(number[place >= PERSONS + AUCTIONS], random, texts),
            }

    def last(self, partition: int) -> dict[str, pa.Table]:
        """An event of each kind, an hour later, that moves the watermark past all others."""
        last_ms = _at_ms(np.array([self.rows])) + LAST_AFTER_MS
        found = {}
        for name, table in next(Events(CYCLE).chunks()).items():
            one = table.slice(0, 1)
            values = {"dateTime": last_ms, "expires": last_ms - 1, "price": np.array([1])}
            values |= {column: np.array([-1 - partition]) for column in _IDS[name]}
            for column in set(values) & set(one.column_names):
                at = one.column_names.index(column)
                one = one.set_column(at, column, pa.array(values[column]))
            found[name] = one
        return found

    def tables(self, partitions: int = 1) -> dict[str, pa.Table]:
        """All events, by topic, with the last ones of each partition."""
        chunks = [*self.chunks(), *(self.last(p) for p in range(partitions))]
        return {name: pa.concat_tables([chunk[name] for chunk in chunks]) for name in SCHEMAS}


def _at_ms(number: np.ndarray) -> np.ndarray:
    return START_MS + number * 1_000 // EVENTS_PER_S


def _newest_person(number: np.ndarray) -> np.ndarray:
    """The newest person's id, less FIRST_ID, when an event happens."""
    return number // CYCLE


def _newest_auction(number: np.ndarray) -> np.ndarray:
    """The newest auction's id, less FIRST_ID."""
    cycle, place = number // CYCLE, number % CYCLE
    within = np.minimum(place - PERSONS, AUCTIONS - 1)
    return np.maximum(cycle * AUCTIONS + within, 0)


class _Texts:
    """Texts to draw from."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", np.uint8)

        def some(count: int, low: int, high: int) -> pa.Array:
            lengths = random.integers(low, high, count)
            ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            data = letters[random.integers(0, len(letters), ends[-1])]
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
            return pa.StringArray.from_buffers(count, buffers[1], buffers[2])

        self.short, self.middle, self.long = (
            some(TEXTS, 5, 20),
            some(TEXTS, 20, 60),
            some(TEXTS, 80, 200),
        )
        names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
        self.names, self.cities, self.states = (
            pa.array(names),
            pa.array(CITIES),
            pa.array(STATES),
        )
        words = random.integers(0, 26, (CHANNELS + len(HOT_CHANNELS), 3, 5)) + ord("a")
        urls, channels = [], []
        for i, letters_of in enumerate(words.astype(np.uint8)):
            path = "/".join(bytes(word).decode() for word in letters_of)
            url = f"https://www.nexmark.com/{path}/item.htm?query=1"
            hot = i < len(HOT_CHANNELS)
            if not hot and i % 10:
                url += f"&channel_id={i * 7_919 % 1_000_003}"
            urls.append(url)
            channels.append(HOT_CHANNELS[i] if hot else f"channel-{i}")
        self.urls, self.channels = pa.array(urls), pa.array(channels)

    def draw(self, texts: pa.Array, count: int) -> pa.Array:
        return texts.take(pa.array(self.random.integers(0, len(texts), count)))


def _prices(random: np.random.Generator, count: int) -> np.ndarray:
    return np.rint(10 ** (random.random(count) * 6) * 100).astype(np.int64)


def _people(number: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A person who is active when an event happens, or is about to come."""
    count = _newest_person(number) + 1
    active = np.minimum(count, ACTIVE_PEOPLE)
    return count - active + random.integers(0, active + LEAD)


def _persons(number: np.ndarray, texts: _Texts) -> pa.Table:
    count = len(number)
    return pa.table(
        {
            "id": number // CYCLE + FIRST_ID,
            "name": texts.draw(texts.names, count),
            "emailAddress": texts.draw(texts.short, count),
            "creditCard": texts.draw(texts.short, count),
            "city": texts.draw(texts.cities, count),
            "state": texts.draw(texts.states, count),
            "dateTime": _at_ms(number),
            "extra": texts.draw(texts.long, count),
        }
    )


def _auctions(number: np.ndarray, random: np.random.Generator, texts: _Texts) -> pa.Table:
    count = len(number)
    hot = random.integers(0, HOT_PEOPLE, count) > 0
    seller = np.where(hot, _newest_person(number) // HOT_EVERY * HOT_EVERY, _people(number, random))
    at_ms, first = _at_ms(number), _prices(random, count)
    horizon = _at_ms(number + IN_FLIGHT * CYCLE // AUCTIONS) - at_ms
    return pa.table(
        {
            "id": _newest_auction(number) + FIRST_ID,
            "itemName": texts.draw(texts.short, count),
            "description": texts.draw(texts.long, count),
            "initialBid": first,
            "reserve": first + _prices(random, count),
            "dateTime": at_ms,
            "expires": at_ms + 1 + random.integers(0, np.maximum(2 * horizon, 1)),
            "seller": seller + FIRST_ID,
            "category": FIRST_CATEGORY + random.integers(0, CATEGORIES, count),
            "extra": texts.draw(texts.long, count),
        }
    )


def _bids(number: np.ndarray, random: np.random.Generator, texts: _Texts) -> pa.Table:
    count = len(number)
    newest = _newest_auction(number)
    least = np.maximum(newest - IN_FLIGHT, 0)
    auction = np.where(
        random.integers(0, HOT_AUCTIONS, count) > 0,
        newest // HOT_EVERY * HOT_EVERY,
        least + random.integers(0, newest - least + 1 + LEAD),
    )
    bidder = np.where(
        random.integers(0, HOT_PEOPLE, count) > 0,
        _newest_person(number) // HOT_EVERY * HOT_EVERY + 1,
        _people(number, random),
    )
    hot = random.integers(0, 2, count) > 0
    channel = np.where(
        hot,
        random.integers(0, len(HOT_CHANNELS), count),
        random.integers(len(HOT_CHANNELS), len(HOT_CHANNELS) + CHANNELS, count),
    )
    return pa.table(
        {
            "auction": auction + FIRST_ID,
            "bidder": bidder + FIRST_ID,
            "price": _prices(random, count),
            "channel": texts.channels.take(pa.array(channel)),
            "url": texts.urls.take(pa.array(channel)),
            "dateTime": _at_ms(number),
            "extra": texts.draw(texts.middle, count),
        }
    )
