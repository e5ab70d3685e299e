"""Protobuf files: as text and as descriptors, and what a reader reads wrongly of a writer's messages."""

from __future__ import annotations

import base64

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from penstock.schemas import Kind, Malformed, parse
from penstock.schemas.protobuf import parse_protobuf, serialized

WHOLE = """
// what an order is
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
option java_package = "x.y";
enum State { NEW = 0; GONE = -1 [deprecated = true]; }
message Order {
  option deprecated = true;
  reserved 9, 12 to 15;
  optional int32 id = 1 [json_name = "key"];
  repeated string tags = 2;
  map<string, Line> lines = 3; /* by
  article */
  oneof payment { int64 cash = 4; State state = 5; }
  message Line { double price = 1; .shop.v1.State state = 2; }
  google.protobuf.Timestamp at = 6;
}
service Orders { rpc Put (Order) returns (Order) { option (a).b = "{"; } }
"""


def test_a_descriptor_is_what_protobufs_own_library_takes() -> None:
    """Text becomes a descriptor by which a message is written and read."""
    descriptor = base64.b64decode(serialized(parse_protobuf(WHOLE), "shop.proto"))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = pool.AddSerializedFile(descriptor)
    order = message_factory.GetMessageClass(file.message_types_by_name["Order"])()
    order.id, order.cash = 7, 100
    order.lines["a"].price = 2.5
    order.lines["a"].state = -1
    again = type(order).FromString(order.SerializeToString())
    assert again == order
    assert again.HasField("id")
    assert again.WhichOneof("payment") == "cash"


def test_text_and_descriptor_are_the_same_schema() -> None:
    """What Python's client registers is compatible with what Java's does, both ways."""
    text = parse(Kind.PROTOBUF, WHOLE)
    binary = parse(Kind.PROTOBUF, serialized(parse_protobuf(WHOLE)))
    assert text.breaks(binary) == binary.breaks(text) == []
    assert parse_protobuf(binary.text).enums[0].values == {"NEW": 0, "GONE": -1}
    assert parse(Kind.PROTOBUF, text.normalized()).breaks(text) == []


def message(body: str, before: str = "") -> str:
    return f'syntax = "proto3"; package p; {before} message M {{ {body} }}'


# reader, writer, what breaks
CASES: list[tuple[str, str, list[str]]] = [
    (message("int32 a = 1;"), message("int32 b = 1;"), []),
    (message("int32 a = 1; string b = 2;"), message("int32 a = 1;"), []),
    (message("int32 a = 1;"), message("int32 a = 1; string b = 2;"), []),
    (message("int64 a = 1;"), message("int32 a = 1;"), []),
    (message("bool a = 1;"), message("uint64 a = 1;"), []),
    (message("sint64 a = 1;"), message("sint32 a = 1;"), []),
    (message("sint32 a = 1;"), message("int32 a = 1;"), ["FIELD_SCALAR_KIND_CHANGED at /M/1"]),
    (message("bytes a = 1;"), message("string a = 1;"), []),
    (message("string a = 1;"), message("int32 a = 1;"), ["FIELD_SCALAR_KIND_CHANGED at /M/1"]),
    (message("E a = 1;", "enum E { Z = 0; }"), message("int32 a = 1;"), []),
    (
        message("N a = 1;", "message N {}"),
        message("int32 a = 1;", "message N {}"),
        ["FIELD_KIND_CHANGED at /M/1"],
    ),
    (
        message("N a = 1;", "message N {} message O {}"),
        message("O a = 1;", "message N {} message O {}"),
        ["FIELD_NAMED_TYPE_CHANGED at /M/1"],
    ),
    (message("N a = 1;", "message N {}").replace("package p", "package q"),
     message("N a = 1;", "message N {}"), []),
    (message(""), message("", "message N {}"), ["MESSAGE_REMOVED at /N"]),
    (message("repeated string a = 1;"), message("string a = 1;"), []),
    (message("repeated int32 a = 1;"), message("int32 a = 1;"), ["FIELD_NUMERIC_LABEL_CHANGED at /M/1"]),
    (message("map<string, int32> a = 1;"), message("map<string, int32> a = 1;"), []),
    (
        message("map<int32, int32> a = 1;"),
        message("map<string, int32> a = 1;"),
        ["FIELD_KIND_CHANGED at /M/1"],
    ),
    (message("oneof o { int32 a = 1; int32 b = 2; }"), message("oneof o { int32 a = 1; }"), []),
    (message("oneof o { int32 a = 1; }"), message("oneof o { int32 a = 1; int32 b = 2; }"),
     ["ONEOF_FIELD_REMOVED at /M/o"]),
    (message("oneof o { int32 a = 1; }"), message("int32 a = 1;"), []),
    (message("oneof o { int32 a = 1; int32 b = 2; }"), message("int32 a = 1; int32 b = 2;"),
     ["MULTIPLE_FIELDS_MOVED_TO_ONEOF at /M/o"]),
    (message("oneof o { int32 a = 1; int32 b = 2; }"), message("int32 a = 1; oneof o { int32 b = 2; }"),
     ["FIELD_MOVED_TO_EXISTING_ONEOF at /M/o"]),
    ("message M { required int32 a = 1; }", "message M { optional int32 a = 1; }",
     ["REQUIRED_FIELD_ADDED at /M/1"]),
    ("message M { optional int32 a = 1; }", "message M { required int32 a = 1; }", []),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "wanted"), CASES)
def test_a_reader_reads_a_writers_messages(reader: str, writer: str, wanted: list[str]) -> None:
    """By numbers and wire types; what breaks is told with rule and place."""
    breaks = parse(Kind.PROTOBUF, reader).breaks(parse(Kind.PROTOBUF, writer))
    assert [f"{one.rule} at {one.path}" for one in breaks] == wanted
    assert all(one.text for one in breaks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("what", "expected a .proto file, or its descriptor"),
        ("AAAA", "expected a .proto file, or its descriptor"),
        ("message M {", "found its end"),
        ("message M { message N", "found its end"),
        ("message 7 {}", "expected a name"),
        ("message M { int32 a = x; }", "expected the number of field 'a'"),
        ("message M { int32 a = 1; int32 b = 1; }", "expected a number of its own"),
        ("message M { N a = 1; }", "M.a: expected a type; found 'N'"),
        ('import "x.proto"; message M {}', "expected a reference for each import"),
        ("flow M {}", "expected a definition"),
        ("message M { ~ }", "expected a .proto file"),
        ("message M {" * 40 + "}" * 40, "nested messages"),
    ],
)
def test_what_is_no_file_is_refused(text: str, message: str) -> None:
    """With what was expected instead."""
    with pytest.raises(Malformed) as caught:
        parse(Kind.PROTOBUF, text)
    assert message in str(caught.value)


def test_damaged_descriptors_are_refused() -> None:
    """Each of a descriptor's beginnings, and each of its bytes changed, is taken or refused."""
    whole = descriptor_pb2.FileDescriptorProto.FromString(
        base64.b64decode(serialized(parse_protobuf(WHOLE)))
    ).SerializeToString()
    refused = 0
    for at in range(len(whole)):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]):
            try:
                parse(Kind.PROTOBUF, base64.b64encode(data).decode())
            except Malformed:
                refused += 1
    assert refused > len(whole)


def test_a_file_imports_references() -> None:
    """By the names under which they are given."""
    inner = 'syntax = "proto3"; package q; message N { int32 a = 1; }'
    outer = 'syntax = "proto3"; import "n.proto"; message M { q.N n = 1; }'
    found = parse_protobuf(outer, {"n.proto": inner})
    assert found.messages[0].fields[0].type == "q.N"
