"""What topics say of the keys that they have."""

from __future__ import annotations

import pyarrow as pa

from penstock.capture._progress import State, Watched, _alive


def test_a_key_is_there_while_its_newest_record_has_a_value() -> None:
    """Deletions count where they come last; records without a key are of no key."""
    keys = pa.chunked_array([[b"a", b"b", None], [b"b", b"c", b"a", b"c"]], pa.binary())
    nothing = [pa.array([False, False, False]), pa.array([True, True, False, False])]
    assert _alive(keys, nothing).to_pylist() == [b"a", b"c"]
    assert _alive(pa.chunked_array([], pa.binary()), []).to_pylist() == []


def test_a_state_is_read_as_it_was_written_also_an_older_one() -> None:
    """Members that came later are empty there."""
    one = State("s", "1/x", "sqlite", tables={"t": Watched("t", 4, emptied=(1,), unseen=(2, 3))})
    assert State.decoded(one.encoded()) == one
    assert State.decoded(one.encoded().replace(b',"unseen":[2,3]', b"")).tables["t"].unseen == ()
