"""What the error of a lane says."""

from __future__ import annotations

from penstock.engine.letters.failures import described, within
from penstock.errors import BrokerError, LimitError


def failed(error: Exception) -> str:
    """The text of an error that an operator raises while a partition is read."""
    try:
        with within("t/0, offsets 3 to 5"), within("lv (shop.py, line 4), shard 1"):
            raise error
    except Exception as caught:
        return described(caught).text


def test_an_error_says_where_it_was() -> None:
    """The view first, then the records."""
    place = "That was in lv (shop.py, line 4), shard 1, reading t/0, offsets 3 to 5."
    found = failed(ValueError("odd"))
    assert found.startswith("expected a task to work; found ValueError: odd (")
    assert found.endswith(f"). {place}")
    assert failed(LimitError("expected less; found more")) == f"expected less; found more. {place}"


def test_an_error_that_may_pass_says_what_it_is() -> None:
    """And so does one from elsewhere."""
    assert failed(BrokerError("away", retriable=True)) == "away"
    assert described(LimitError("expected less; found more")).text == "expected less; found more"
