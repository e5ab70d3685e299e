"""What programs pass to the API, checked where it is passed: errors say what to write.

Types are not checked when a program is read, so a wrong one would end in an AttributeError of ours,
far from the line that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import pyarrow as pa

from penstock.core.names import hint, known_names
from penstock.core.schema import Schema
from penstock.core.time import DURATION_MAX_US, duration_us
from penstock.errors import FlowError, SchemaError, UserError
from penstock.expr import Expression, compile_expression
from penstock.expr.duck import quoted
from penstock.formats.avro import Avro
from penstock.formats.changelog import FORMATS, ChangelogFormat
from penstock.formats.lines import Csv, LineFormat, decoder_for
from penstock.formats.lines.kinds import FORMATS as NAMED
from penstock.formats.lines.kinds import named_format
from penstock.formats.registered import KINDS, Encoded, encoded_as, registered_encoder

__all__ = [
    "check_changelog",
    "check_columns",
    "check_condition",
    "check_duration",
    "check_format",
    "check_function",
    "check_name",
    "check_number",
    "check_registry",
    "check_schema",
    "check_text",
    "check_written",
    "quoted",
]

T = TypeVar("T")


def check_text(value: object, what: str, example: str) -> str:
    """A text.

    Raises:
        FlowError: it is something else; the message shows the example.
    """
    if not isinstance(value, str):
        raise FlowError(f"expected {what} as text, such as {example}; found {_shown(value)}")
    return value


def check_condition(text: object, schema: Schema) -> Expression:
    """A condition over a row's columns.

    Raises:
        FlowError: it is no text.
        SchemaError: it can't be read, or is no condition.
    """
    expression = compile_expression(check_text(text, "a condition", '"status >= 500"'), schema)
    if expression.type != pa.bool_():
        raise SchemaError(f"expected a condition; found {text!r} of type {expression.type}")
    return expression


def check_duration(value: object, what: str, example: str) -> int:
    """A duration in µs.

    Raises:
        FlowError: it is none, or longer than all instants are apart; a number needs its unit.
    """
    if isinstance(value, str | timedelta):
        try:
            found = duration_us(value)
        except UserError as error:
            raise FlowError(f"{what}: {error}") from None
        if found > DURATION_MAX_US:
            raise FlowError(f"expected {what} of at most 10,000 years; found {value!r}")
        return found
    unit = f". Add the unit: '{value} seconds'" if isinstance(value, int | float) else ""
    raise FlowError(
        f"expected {what} as a duration, such as {example} or a timedelta; found {_shown(value)}{unit}"
    )


def check_number(value: object, what: str, least: int, most: int) -> int:
    """A whole number within bounds.

    Raises:
        FlowError: it is none, or beyond them.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise FlowError(f"expected {least} to {most} {what}; found {_shown(value)}")
    return value


def check_function(value: Callable[..., T] | None, what: str) -> None:
    """Something that can be called.

    Raises:
        FlowError: it can't.
    """
    if value is not None and not callable(value):
        raise FlowError(f"expected {what} as a function; found {_shown(value)}")


def check_columns(names: tuple[Any, ...], schema: Schema, call: str) -> None:
    """Names of columns, each an argument of its own.

    Raises:
        FlowError: they were passed as a list, or aren't names.
        SchemaError: there is no such column.
    """
    for name in names:
        if not isinstance(name, str):
            listed = isinstance(name, list | tuple) and all(isinstance(one, str) for one in name)
            written = ", ".join(repr(one) for one in (name if listed else schema.names[:1]))
            raise FlowError(
                f"expected names of columns, such as {call}({written}); found {_shown(name)}"
            )
        schema[name]


def check_schema(value: object) -> Schema:
    """A schema, or its text.

    Raises:
        FlowError: it is neither.
        SchemaError: the text can't be read.
    """
    if isinstance(value, Schema):
        return value
    if isinstance(value, str):
        return Schema.parse(value)
    write = ""
    if isinstance(value, Mapping) and value and all(isinstance(v, str) for v in value.values()):
        write = '. Write "' + ", ".join(f"{name} {type_}" for name, type_ in value.items()) + '"'
    raise FlowError(
        f"expected a schema as text, such as 'user STRING NOT NULL, at TIMESTAMP'; found "
        f"{_shown(value)}{write}"
    )


def check_name(name: object, known: Mapping[str, T], what: str) -> T:
    """What has a name.

    Raises:
        FlowError: nothing has; the message says what there is.
    """
    if not isinstance(name, str) or name not in known:
        raise FlowError(
            f"expected {what} ({known_names(known)}); found {_shown(name)}{hint(name, known)}"
        )
    return known[name]


def _shown(value: object) -> str:
    """A value and, where that isn't plain, its type."""
    text = repr(value)
    text = text if len(text) <= 80 else text[:79] + "…"
    return (
        text if isinstance(value, str | int | float | None) else f"{text}, a {type(value).__name__}"
    )


def check_format(format_: object, registry: object, schema: Schema) -> LineFormat | None:
    """What a stream's `format=` and `registry=` say; None is JSON.

    Raises:
        FlowError: it is no format, doesn't have the schema's columns, or one doesn't go with the other.
    """
    if format_ == "json" and registry is None:
        return None
    if format_ == "csv":
        format_ = Csv()
    if isinstance(format_, str) and registry is None and format_ in NAMED.names():
        format_ = named_format(format_, {})
    if registry is not None and format_ in KINDS:
        format_, registry = encoded_as(str(format_), check_registry(registry)), None
    if not isinstance(format_, LineFormat) or registry is not None:
        detail = "" if registry is None else f" and registry={registry!r}"
        raise FlowError(
            "expected format='json', 'csv', ps.csv(…), ps.pattern(…) or ps.avro(…); or format='avro', "
            "'json-schema' or 'protobuf' with registry='http://127.0.0.1:8081'; found "
            f"format={format_!r}{detail}"
        ).but_in_sql(
            "expected format = 'json', 'csv' or 'pattern'; or 'avro', 'json-schema' or 'protobuf' with "
            f"registry = 'http://127.0.0.1:8081'; found format = {format_!r}"
        )
    try:
        decoder_for(schema, format_)
    except UserError as error:
        raise FlowError(str(error)) from None
    return format_


def check_registry(url: object) -> str:
    """A schema registry's URL, without a slash at its end.

    Raises:
        FlowError: it is none, or has a password.
    """
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise FlowError(
            f"expected a registry's URL, such as registry='http://127.0.0.1:8081'; found {url!r}"
        )
    if parts.username or parts.password:
        raise FlowError(
            "expected a registry's URL without a password, which programs would show; found one. Set "
            "PENSTOCK_REGISTRY_PASSWORD instead"
        )
    return str(url).rstrip("/")


def check_changelog(format_: object, registry: object) -> tuple[ChangelogFormat, Encoded | None]:
    """What `format=` and `registry=` of a table's topic say: which changes, and how they are encoded.

    Raises:
        FlowError: it is no format, or one doesn't go with the other.
    """
    if registry is not None and format_ in KINDS:
        return "json", encoded_as(str(format_), check_registry(registry))
    if registry is not None and format_ == "debezium":
        return "debezium", Avro((), check_registry(registry))  # or another kind: its registry knows
    if registry is not None or format_ in KINDS:
        found = "none" if registry is None else f"registry={registry!r} with format={format_!r}"
        raise FlowError(
            "expected registry='http://127.0.0.1:8081' with format='avro', 'json-schema' or 'protobuf', or "
            f"with format='debezium' for envelopes of these; found {found}"
        )
    if format_ not in FORMATS:
        known = " or ".join(f"format={name!r}" for name in (*FORMATS, *KINDS))
        raise FlowError(f"expected {known}; found format={format_!r}")
    return cast("ChangelogFormat", format_), None


def check_written(format_: object, registry: object, schema: Schema) -> Encoded | None:
    """What `format=` and `registry=` of an output say; None is JSON.

    Raises:
        FlowError: it is no format that is written, or one doesn't go with the other.
        SchemaError: it doesn't have the schema's columns.
    """
    if format_ == "json" and registry is None:
        return None
    if format_ in KINDS and registry is not None:
        format_ = encoded_as(str(format_), check_registry(registry))
    elif not isinstance(format_, Encoded) or registry is not None or format_.registry is None:
        detail = "" if registry is None else f" and registry={registry!r}"
        raise FlowError(
            "expected format='json'; or format='avro', 'json-schema' or 'protobuf' with "
            "registry='http://127.0.0.1:8081', which gives schemas their ids; found "
            f"format={format_!r}{detail}"
        )
    registered_encoder(format_.kind, schema, "Value", "topic")  # which has these columns
    return format_
