"""What topics say of the keys that they have."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.capture import output as output_module
from penstock.capture.output import Captured, Output
from penstock.capture.progress import Log, State, Watched, state_topic
from penstock.capture.snapshots import written_before
from penstock.capture.table_schemas import Shape, Version
from penstock.client import Reader, live_keys
from penstock.client.live_keys import LiveKeys
from penstock.errors import FencedError


@pytest.mark.parametrize("folded", [0, 1 << 20])
def test_a_key_is_there_while_its_newest_record_has_a_value(folded, monkeypatch) -> None:
    """Deletions count where they come last; records without a key are of no key. Each is kept once."""
    monkeypatch.setattr(live_keys, "FOLDED_BYTES", folded)
    keys = LiveKeys()
    keys.add(pa.array([b"a", b"b", None], pa.binary()), pa.array([False] * 3))
    nothing = pa.array([True, True, False, False, False])
    keys.add(pa.array([b"b", b"c", b"a", b"c", b"a"], pa.binary()), nothing)
    assert keys.array().to_pylist() == [b"a", b"c"]
    keys.add(pa.array([b"b"], pa.binary()))
    assert keys.array().to_pylist() == [b"a", b"c", b"b"]
    assert LiveKeys().array().to_pylist() == []


def test_keys_of_many_records_are_in_memory_once(monkeypatch) -> None:
    """A topic may have far more records than keys."""
    monkeypatch.setattr(live_keys, "FOLDED_BYTES", 1000)
    keys, some = LiveKeys(), pa.array([b"%d" % i for i in range(20)], pa.binary())
    for _ in range(100):
        keys.add(some)
    assert len(keys._keys) < 20
    assert keys.array() == some


def test_keys_are_deleted_in_topics_of_former_snapshots_alone() -> None:
    """Not in one that is another table's as well, nor in one that the table gets now: others write there."""
    new = {("s", one): f"topic of {one}" for one in ("anew", "dropped", "moved", "never")}
    new |= {("s", "shares"): "one for all"}
    new |= {("s", "elsewhere"): "of others", ("s", "before"): "of a former release"}
    former = {"s.anew": Watched("topic of anew", 0), "s.moved": Watched("topic before", 0)}
    kept = {"s.kept": Watched("one for all", 0)}
    topics = {"anew": "topic of anew", "dropped": "topic of dropped", "moved": "topic of moved"}
    topics |= {"shares": "one for all", "elsewhere": "of its own", "before": ""}
    known = {f"s.{name}": Version(1, Shape((), ()), topic) for name, topic in topics.items()}
    found = written_before(new, kept, {**former, **kept}, known)
    assert found == {"s.anew": "topic of anew", "s.dropped": "topic of dropped"}


def test_a_state_is_read_as_it_was_written_also_an_older_one() -> None:
    """Members that came later are empty there."""
    one = State("s", "1/x", "sqlite", tables={"t": Watched("t", 4, emptied=(1,), unseen=(2, 3))})
    assert State.decoded(one.encoded()) == one
    assert State.decoded(one.encoded().replace(b',"unseen":[2,3]', b"")).tables["t"].unseen == ()


def forget(one: Log, name: str) -> None:
    """Ends it. Others look at all captures of the broker, and this one isn't of a database."""
    one.client.delete_topic(state_topic(name), missing_ok=True)
    one.close()


def test_columns_follow_what_is_waiting_of_their_topic(log) -> None:
    """Rows that are sent at once come behind records of the same partition that aren't sent yet."""
    one = Log(log, "waiting")
    try:
        one.start()
        one.create_topic("waiting.t", 1, {})
        one.put("waiting.t", b"a", b"1", 0)
        keys, values = (pa.array(some, pa.binary()) for some in ([b"b", b"c"], [b"2", b"3"]))
        one.put_all("waiting.t", keys, values, 0)
        one.put("waiting.t", b"d", b"4", 0)
        one.commit(State("", "", ""))
        with Reader(log) as reader:
            found = [
                value
                for records in reader.read("waiting.t", 0, 0, one.ends("waiting.t")[0])
                for value in records.values().to_pylist()
            ]
    finally:
        forget(one, "waiting")
    assert found == [b"1", b"2", b"3", b"4"]


def test_changes_are_taken_while_others_are_being_stored(log, monkeypatch) -> None:
    """A position counts as stored once it is; where that fails, the capture ends."""
    monkeypatch.setattr(output_module, "LINGER_S", -1.0)  # as if there were always more at hand
    one, other = Log(log, "behind"), Log(log, "behind")
    try:
        one.start()
        one.create_topic("behind.t", 1, {})
        output = Output(one, State("", "", ""), Captured(), "me", None, None)
        for n in range(1, 21):
            output.put("behind.t", b"k", b"%d" % n, 0)
            assert output.committed(n, n)
            assert output.position == output.state.position == n
            assert output.store(came=True)
            assert n - 1 <= output.stored <= n  # one commit at a time
        output.settle()
        assert output.stored == output.done.records == output.done.time_us == 20
        assert one.load().position == 20
        with Reader(log) as reader:
            chunks = [*reader.read("behind.t", 0, 0, one.ends("behind.t")[0])]
        values = [value for records in chunks for value in records.values().to_pylist()]
        assert values == [b"%d" % n for n in range(1, 21)]
        other.start()
        output.put("behind.t", b"k", b"21", 0)
        output.committed(21, 21)
        output.store(came=True)
        with pytest.raises(FencedError):
            output.settle()
        assert output.stored == other.load().position == 20
    finally:
        other.close()
        forget(one, "behind")
