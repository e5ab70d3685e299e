from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from penstock.broker.transactions.machine import EPOCH_LAST, EXPIRY_MS, Answer, State, Transactions
from penstock.wire.protocol import ErrorCode

PLACE = ("t", 0)


class Machine(Transactions):
    """The state machine, whose changes are carried out at once."""

    def __init__(self) -> None:
        super().__init__(itertools.count(1).__next__)

    def do(self, answer: Answer) -> Answer:
        """Carries an answer's change out, markers included."""
        if answer.change is not None:
            self.begin(answer.change)
            self.check()
            self.complete(answer.change)
            for one in self:
                for place in (
                    self.unmarked().get(one.serial, set()) if one.state.is_prepared else ()
                ):
                    self.marked(one.id, one.serial, place)
        self.check()
        return answer

    def start(self, epoch: int) -> tuple[int, int]:
        """An id `x` whose producer has come to an epoch."""
        answer = self.do(self.init(0, "x", 1000, None))
        known = self._known["x"]
        self._set(known, replace(known, epoch=epoch))
        return answer.producer_id, epoch


def test_epochs_run_out_between_instances() -> None:
    """After the last epoch an id goes on with a new producer id; a repeated request is told the same."""
    machine = Machine()
    who = machine.start(EPOCH_LAST)
    first = machine.do(machine.init(1, "x", 1000, who))
    assert (first.code, first.epoch) == (ErrorCode.NONE, 0)
    assert first.producer_id != who[0]
    again = machine.do(machine.init(2, "x", 1000, who))
    assert (again.producer_id, again.epoch) == (first.producer_id, 0)
    assert machine.add(3, "x", *who, places=[PLACE]).code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert machine.do(machine.add(3, "x", first.producer_id, 0, places=[PLACE])).code == 0


def test_epochs_run_out_in_a_transaction() -> None:
    """A producer that takes an epoch per transaction gets a new id with the end of the last one."""
    machine = Machine()
    who = machine.start(EPOCH_LAST)
    machine.do(machine.add(1, "x", *who, places=[PLACE]))
    ended = machine.do(machine.end(2, "x", *who, commit=True, bumps=True))
    assert (ended.code, ended.epoch) == (ErrorCode.NONE, 0)
    assert ended.producer_id != who[0]
    again = machine.do(machine.end(3, "x", *who, commit=True, bumps=True))
    assert (again.producer_id, again.epoch) == (ended.producer_id, 0)
    known = machine.get("x")
    assert known is not None
    assert known.state is State.COMPLETE_COMMIT
    machine.do(machine.add(4, "x", ended.producer_id, 0, places=[PLACE]))


def test_the_last_epoch_can_be_fenced() -> None:
    """Even a producer with the last epoch is fenced when its time is over."""
    machine = Machine()
    who = machine.start(EPOCH_LAST)
    machine.do(machine.add(1, "x", *who, places=[PLACE]))
    (change,) = machine.overdue(5000)
    machine.do(Answer(change=change))
    assert machine.end(6000, "x", *who, commit=True, bumps=False).code == ErrorCode.PRODUCER_FENCED
    assert machine.do(machine.init(7000, "x", 1000, None)).epoch == 0


def test_others_wait_while_a_change_is_on_its_way() -> None:
    """Until a change is durable, whoever asks for the same id is told to come back."""
    machine = Machine()
    who = machine.start(0)
    machine.do(machine.add(1, "x", *who, places=[PLACE]))
    answer = machine.end(2, "x", *who, commit=True, bumps=False)
    assert answer.change is not None
    machine.begin(answer.change)
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    assert machine.add(3, "x", *who, places=[("t", 1)]).code == busy
    assert machine.fault_of("x", *who, place=PLACE) == busy
    assert machine.init(3, "x", 1000, None).code == busy
    assert machine.end(3, "x", *who, commit=False, bumps=False).code == busy
    assert machine.overdue(10_000) == []
    machine.complete(answer.change)
    assert machine.end(3, "x", *who, commit=True, bumps=False).code == busy
    assert machine.end(3, "x", *who, commit=False, bumps=False).code == ErrorCode.INVALID_TXN_STATE
    machine.marked("x", 1, PLACE)
    assert machine.end(3, "x", *who, commit=True, bumps=False).code == 0
    machine.check()


def test_idle_ids_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that did nothing for long are forgotten, open ones never; there are not too many."""
    monkeypatch.setattr("penstock.broker.transactions.machine.IDS_MAX", 2)
    machine = Machine()
    machine.do(machine.init(0, "idle", 1000, None))
    busy = machine.do(machine.init(0, "busy", 1000, None))
    machine.do(machine.add(0, "busy", busy.producer_id, 0, places=[PLACE]))
    assert machine.init(1, "more", 1000, None).code == ErrorCode.POLICY_VIOLATION
    assert machine.expired(EXPIRY_MS) == []
    (change,) = machine.expired(EXPIRY_MS + 1)
    assert change.id == "idle"
    machine.do(Answer(change=change))
    assert machine.get("idle") is None
    assert machine.do(machine.init(1, "more", 1000, None)).code == 0
