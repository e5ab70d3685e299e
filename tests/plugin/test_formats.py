"""A format of another distribution, in SQL and in Python."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import FlowError, SetupError, UserError
from penstock.sql import SqlFlow


@pytest.mark.usefixtures("plugin")
def test_a_format_decodes_the_records_of_a_stream() -> None:
    """By its name, with options in SQL and in Python; a line that doesn't fit is a dead letter."""
    app = SqlFlow("logs")
    app.sql(
        "CREATE STREAM a (level STRING, ms BIGINT) WITH (format = 'logfmt');"
        "CREATE STREAM b (level STRING, ms BIGINT) WITH (format = 'logfmt', separator = ';');"
    )
    c = app.stream("c", "level STRING, ms BIGINT", format=ps.record_format("logfmt", separator="|"))
    for name, stream in (("a", app.named["a"]), ("b", app.named["b"]), ("c", c)):
        app.view(name, stream.group_by("level").agg(ms=ps.sum("ms")))
    run = ps.testing.run(app)
    for topic, separator in (("a", " "), ("b", ";"), ("c", "|")):
        for line in ("level=info SEP ms=17", "ms=5 SEP level=info", "nothing", "ms=x"):
            run.send_raw(topic, line.replace(" SEP ", separator).encode())
    run.settle()
    for view in ("a", "b", "c"):
        assert run.view(view).rows() == [{"level": "info", "ms": 22}]
    reasons = [one.headers["penstock.reason"] for one in run.dead_letters()]
    assert sum("expected name=value; found 'nothing'" in one for one in reasons) == 3
    assert len(reasons) == 6


@pytest.mark.usefixtures("plugin")
def test_a_format_that_does_not_fit_is_reported_when_the_program_is_read(broken) -> None:
    """Its options, its name, and a distribution that can't be loaded."""
    broken("penstock.formats", {"cef": "broken_plugin:CEF"})
    app = SqlFlow("logs")
    wrong = ps.record_format("logfmt", separator="")
    with pytest.raises(FlowError, match="expected separator=TEXT with the format 'logfmt'"):
        app.stream("a", "level STRING", format=wrong)
    with pytest.raises(FlowError, match="seperator"):
        app.sql("CREATE STREAM b (level STRING) WITH (format = 'logfmt', seperator = ';')")
    with pytest.raises(UserError, match="expected the name of an installed plugin's format"):
        ps.record_format("logfm")
    with pytest.raises(SetupError, match=r"'cef' of the distribution penstock-broken 0.3"):
        app.stream("c", "level STRING", format="cef")
