"""Lanes hand each other whole levels: everything, once, in the order of origins."""

from __future__ import annotations

import random
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from penstock.engine.lanes.exchange import Exchange
from penstock.engine.lanes.messages import PREFIX, Parcel, frame
from penstock.engine.tasks import Handed

SECRET = b"s" * 32


class Lanes:
    """Some exchanges, each in a thread of its own, and what stands for their driver's connection."""

    def __init__(self, count: int, on_call: Callable[[], None] = lambda: None) -> None:
        self.calls = [socket.socketpair() for _ in range(count)]
        self.all = [
            Exchange(i, count, "127.0.0.1", SECRET, self.calls[i][0], on_call) for i in range(count)
        ]
        self.addresses = [(one.host, one.port) for one in self.all]

    def begin(self, ticket: int) -> None:
        for one in self.all:
            one.begin(ticket, self.addresses)

    def swap(self, levels: list[list[list[tuple[int, Handed]]]]) -> list[list[list[Handed]]]:
        """For each lane, its levels of (to, what): what each lane got, by level."""
        found: list[list[list[Handed]]] = [[] for _ in self.all]
        failures: list[BaseException] = []

        def work(lane: int) -> None:
            try:
                for level, sent in enumerate(levels[lane]):
                    parcels = [(to, h, lambda h=h: bytes(h.content)) for to, h in sent]
                    found[lane].append(self.all[lane].swap(level, parcels))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(self.all))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads), "a lane hangs"
        assert not failures, failures
        return found

    def close(self) -> None:
        for one in self.all:
            one.close()
        for pair in self.calls:
            for sock in pair:
                sock.close()


def is_cut_off(stranger: socket.socket) -> bool:
    """Whether the other side has closed; what it left unread makes that a reset."""
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


def plain(handed: list[Handed]) -> list[tuple[Any, ...]]:
    return [(h.operator, h.shard, h.origin, bytes(h.content)) for h in handed]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_every_parcel_arrives_once(count: int, seed: int) -> None:
    """At the lane that it is for, at the level that it was sent at, several batches in a row."""
    chance = random.Random(seed)
    lanes = Lanes(count)
    try:
        for ticket in range(1, 4):
            lanes.begin(ticket)
            sent = [
                [
                    [
                        (
                            chance.randrange(count),
                            Handed("op", 0, n % 3, f"{lane}/{n:03d}", chance.randbytes(n * 7)),
                        )
                        for n in range(chance.randrange(12))
                    ]
                    for _ in range(3)
                ]
                for lane in range(count)
            ]
            found = lanes.swap(sent)
            for to in range(count):
                for level in range(3):
                    wanted = [h for lane in sent for target, h in lane[level] if target == to]
                    assert sorted(plain(found[to][level])) == sorted(plain(wanted))
    finally:
        lanes.close()


def test_lanes_that_send_each_other_much_do_not_wait_for_each_other() -> None:
    """More than sockets hold, both ways at once."""
    lanes = Lanes(2)
    try:
        lanes.begin(1)
        data = random.Random(1).randbytes(24 << 20)
        sent = [[[(1 - lane, Handed("op", 0, 0, str(lane), data))]] for lane in (0, 1)]
        found = lanes.swap(sent)
        assert all(bytes(found[lane][0][0].content) == data for lane in (0, 1))
    finally:
        lanes.close()


def test_what_an_attempt_left_behind_is_dropped() -> None:
    """Parcels of an older ticket, sent or half sent, show in no later attempt."""
    lanes = Lanes(2)
    first = lanes.all[0]
    try:
        lanes.begin(1)
        stale = frame(Parcel(1, 0, "op", 0, 0, "stale"), 3)
        out = first._to(1)
        out.queue(stale, b"old")
        first._flush(out)
        lanes.begin(2)
        fresh = Handed("op", 0, 0, "fresh", b"new")
        found = lanes.swap([[[(1, fresh)]], [[]]])
        assert plain(found[1][0]) == [("op", 0, "fresh", b"new")]
    finally:
        lanes.close()


def test_strangers_are_not_heard() -> None:
    """Who doesn't know the secret of the run is cut off; the exchange goes on."""
    lanes = Lanes(2)
    try:
        lanes.begin(1)
        with socket.create_connection(lanes.addresses[1]) as stranger:
            stranger.sendall(frame(Parcel(1, 0, "op", 0, 0, "evil"), 4) + b"evil")
            found = lanes.swap([[[(1, Handed("op", 0, 0, "good", b"good"))]], [[]]])
            assert plain(found[1][0]) == [("op", 0, "good", b"good")]
            stranger.settimeout(PATIENCE_S)
            assert is_cut_off(stranger)
    finally:
        lanes.close()


def test_strangers_cost_no_memory() -> None:
    """What one announces is refused before it is made room for; those who are known may send much."""
    lanes = Lanes(2)
    try:
        lanes.begin(1)
        with socket.create_connection(lanes.addresses[1]) as stranger:
            stranger.sendall(PREFIX.pack(100, 4 << 30))  # 4 GiB are to come
            stranger.settimeout(PATIENCE_S)
            lanes.swap([[[]], [[]]])
            while stranger not in select.select([stranger], [], [], 0)[0]:
                lanes.begin(2)
                lanes.swap([[[]], [[]]])
            assert is_cut_off(stranger)
    finally:
        lanes.close()


def test_the_driver_is_heard_while_a_lane_waits() -> None:
    """An attempt that is given up ends where a lane waits for another one that is lost."""

    class Aborted(Exception):
        pass

    def called() -> None:
        raise Aborted

    lanes = Lanes(2, called)
    try:
        lanes.begin(1)
        lanes.calls[0][1].send(b"!")
        with pytest.raises(Aborted):
            lanes.all[0].swap(0, [])
    finally:
        lanes.close()
