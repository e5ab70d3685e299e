"""The registry's API, as Confluent's documentation says it."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from tests.registry.asking import Asking, record

from penstock.registry import MemoryStore

THREE = json.dumps(
    {**json.loads(record("x", "y")), "fields": [
        *json.loads(record("x", "y"))["fields"], {"name": "z", "type": "int", "default": 0}]}
)  # fmt: skip
"""Reads what has x and y, not what has neither."""
PROTO = 'syntax = "proto3"; message M { int32 a = 1; }'


@pytest.fixture
def ask() -> Asking:
    return Asking()


def test_a_schema_is_registered_and_found(ask: Asking) -> None:
    """By id, by version, by subject, and by itself."""
    id_ = ask.register("a-value", record("x"))
    text = record("x").replace(" ", "")
    assert id_ == 1
    assert ask("GET", "/schemas/ids/1") == {"schema": text}
    assert ask.answer.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
    shown = {"subject": "a-value", "version": 1, "id": 1, "schema": text}
    assert ask("GET", "/subjects/a-value/versions/1") == shown
    assert ask("GET", "/subjects/a-value/versions/latest") == shown
    assert ask("POST", "/subjects/a-value", {"schema": record("x")}) == shown
    assert ask("GET", "/schemas") == [shown]
    assert json.loads(text) == ask("GET", "/schemas/ids/1/schema")
    assert json.loads(text) == ask("GET", "/subjects/a-value/versions/1/schema")
    assert ask("GET", "/subjects") == ["a-value"]
    assert ask("GET", "/subjects/a-value/versions") == [1]
    assert ask("GET", "/schemas/ids/1/versions") == [{"subject": "a-value", "version": 1}]
    assert ask("GET", "/schemas/ids/1/subjects") == ["a-value"]
    assert ask("GET", "/schemas/types") == ["JSON", "PROTOBUF", "AVRO"] or ask.status == 200


def test_the_same_schema_has_one_id(ask: Asking) -> None:
    """In all subjects, however it is spaced; another kind or other references make another."""
    assert ask.register("a", record("x")) == ask.register("a", record("x").replace(" ", "\n")) == 1
    assert ask.register("b", record("x")) == 1
    assert ask("GET", "/subjects/a/versions") == [1]
    assert ask.register("c", '{"type": "string"}') == 2
    assert ask.register("d", '{"type": "string"}', schemaType="JSON") == 3


def test_a_normal_form_finds_schemas_that_are_written_otherwise(ask: Asking) -> None:
    """By request, or by the subject's config."""
    other = '{"name": "r", "fields": [{"type": "int", "name": "x"}], "type": "record"}'
    assert ask.register("a", record("x")) == 1
    assert ask("POST", "/subjects/a/versions?normalize=true", {"schema": other})["id"] == 1
    assert ask("POST", "/subjects/a?normalize=true", {"schema": other})["version"] == 1
    assert ask.code("POST", "/subjects/a", {"schema": other}) == 40403
    ask("PUT", "/config/a", {"normalize": True})
    assert ask("POST", "/subjects/a", {"schema": other})["version"] == 1


CODES: list[tuple[str, str, Any, int]] = [
    ("GET", "/subjects/none/versions", None, 40401),
    ("GET", "/subjects/none/versions/1", None, 40401),
    ("GET", "/subjects/a/versions/9", None, 40402),
    ("GET", "/subjects/a/versions/x", None, 42202),
    ("GET", "/subjects/a/versions/0", None, 42202),
    ("GET", "/schemas/ids/99", None, 40403),
    ("GET", "/schemas/ids/99/versions", None, 40403),
    ("GET", "/schemas/ids/1?subject=other", None, 40403),
    ("POST", "/subjects/none", {"schema": record("x")}, 40401),
    ("POST", "/subjects/a", {"schema": record("y")}, 40403),
    ("POST", "/subjects/a/versions", {"schema": "{"}, 42201),
    ("POST", "/subjects/a/versions", {"schema": ""}, 42201),
    ("POST", "/subjects/a/versions", {}, 42201),
    ("POST", "/subjects/a/versions", {"schema": "{}", "schemaType": "XML"}, 42201),
    ("POST", "/subjects/a/versions", {"schema": "{}", "schemaType": ["JSON"]}, 42201),
    ("POST", "/subjects/a/versions", {"schema": record("y"), "references": 5}, 42201),
    ("POST", "/subjects/a/versions", {"schema": record("y"), "id": "x"}, 42201),
    ("POST", "/subjects/a/versions", {"schema": record("y")}, 409),
    ("POST", "/subjects/a/versions", {"schema": record("x"), "id": 7}, 42205),
    (
        "POST",
        "/subjects/a/versions",
        {"schema": '"n"', "references": [{"name": "n", "subject": "none", "version": 1}]},
        42201,
    ),
    ("POST", "/subjects/a/versions", [], 400),
    ("PUT", "/config", {"compatibility": "SOME"}, 42203),
    ("GET", "/config/a", None, 40408),
    ("GET", "/mode/a", None, 40409),
    ("PUT", "/mode", {"mode": "SOME"}, 42204),
    ("PUT", "/mode", {"mode": "IMPORT"}, 42205),
    ("DELETE", "/subjects/none", None, 40401),
    ("DELETE", "/subjects/a?permanent=true", None, 40405),
    ("DELETE", "/subjects/a/versions/9", None, 40402),
    ("DELETE", "/subjects/a/versions/1?permanent=true", None, 40407),
    ("DELETE", "/config/a", None, 40401),
    ("DELETE", "/mode/a", None, 40401),
    ("POST", "/compatibility/subjects/a/versions/9", {"schema": record("x")}, 40402),
    ("GET", "/nothing", None, 404),
    ("PATCH", "/subjects", None, 405),
]


@pytest.mark.parametrize(("method", "path", "body", "code"), CODES)
def test_a_refusal_has_confluents_code(
    ask: Asking, method: str, path: str, body: Any, code: int
) -> None:
    """With HTTP's status before it, and a message; nothing is written."""
    ask.register("a", record("x"))
    before = len(ask.store.records) if isinstance(ask.store, MemoryStore) else 0
    found = ask(method, path, body)
    assert found["error_code"] == code
    assert ask.status == (code if code < 1000 else code // 100)
    assert found["message"]
    assert isinstance(ask.store, MemoryStore)
    assert len(ask.store.records) == before


def test_bodies_must_be_json_and_small(ask: Asking) -> None:
    """A form of another page's is none; a body beyond the limit isn't read."""
    headers = {"Content-Type": "text/plain"}
    assert ask("POST", "/subjects/a/versions", {}, headers=headers)["error_code"] == 415
    assert ask.code("POST", "/subjects/a/versions", {"schema": "x" * (1 << 20)}) == 413


@pytest.mark.parametrize(
    ("level", "schema", "status"),
    [
        ("NONE", '"string"', 200),
        ("BACKWARD", record("x"), 200),  # reads version 2, has no default for version 1
        ("BACKWARD_TRANSITIVE", record("x"), 409),
        ("FORWARD", record("y"), 409),
        ("FORWARD", record("x", "y", "z"), 200),
        ("FORWARD_TRANSITIVE", record("x", "y", "z"), 200),
        ("FULL", record("x", "z"), 409),
        ("FULL", record("x", "y", "z", default=True), 200),
        ("FULL_TRANSITIVE", record("x", "y", "z", default=True), 200),
        ("FULL_TRANSITIVE", THREE, 409),
        ("FULL", THREE, 200),
    ],
)
def test_a_subjects_level_is_asked_of_new_schemas(
    ask: Asking, level: str, schema: str, status: int
) -> None:
    """Of the last version, or of all with the transitive ones."""
    ask("PUT", "/config", {"compatibility": "NONE"})
    for one in (record(), record("x", "y")):
        ask.register("a", one)
    assert ask("PUT", "/config/a", {"compatibility": level}) == {"compatibility": level}
    checked = ask("POST", "/compatibility/subjects/a/versions?verbose=true", {"schema": schema})
    assert checked["is_compatible"] == (status == 200)
    assert bool(checked["messages"]) == (status != 200)
    found = ask("POST", "/subjects/a/versions", {"schema": schema})
    assert ask.status == status
    if status == 409:
        assert checked["messages"][0] in found["message"]
        assert f"compatibility: {level}" in found["message"]


def test_a_version_alone_is_checked(ask: Asking) -> None:
    """By number, or the latest; a subject without versions takes all."""
    ask.register("a", record("x"))
    ask.register("a", record("x", "y", default=True))
    path = "/compatibility/subjects/a/versions/1"
    assert ask("POST", path, {"schema": record("x")}) == {"is_compatible": True}
    assert ask("POST", path, {"schema": record("z")}) == {"is_compatible": False}
    none = "/compatibility/subjects/none/versions/latest"
    assert ask("POST", none, {"schema": record("z")}) == {"is_compatible": True}


def test_configs_are_the_subjects_or_all_subjects(ask: Asking) -> None:
    """A subject without one has the global one; that is BACKWARD at first."""
    assert ask("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert ask("PUT", "/config", {"compatibility": "full"}) == {"compatibility": "FULL"}
    assert ask("GET", "/config/a?defaultToGlobal=true") == {"compatibilityLevel": "FULL"}
    ask("PUT", "/config/a", {"compatibility": "NONE"})
    assert ask("GET", "/config/a") == {"compatibilityLevel": "NONE"}
    assert ask("DELETE", "/config/a") == {"compatibilityLevel": "NONE"}
    assert ask.code("GET", "/config/a") == 40408
    assert ask("DELETE", "/config") == {"compatibilityLevel": "FULL"}
    assert ask("GET", "/config") == {"compatibilityLevel": "BACKWARD"}


def test_modes_forbid_writes_or_take_ids(ask: Asking) -> None:
    """READONLY refuses what is new alone; IMPORT keeps ids and versions."""
    assert ask("GET", "/mode") == {"mode": "READWRITE"}
    ask.register("a", record("x"))
    assert ask("PUT", "/mode/a", {"mode": "READONLY"}) == {"mode": "READONLY"}
    assert ask.register("a", record("x")) == 1
    assert ask.code("POST", "/subjects/a/versions", {"schema": record("x", "y")}) == 42205
    assert ask.code("DELETE", "/subjects/a") == 42205
    assert ask("DELETE", "/mode/a") == {"mode": "READONLY"}
    assert ask("GET", "/mode/a?defaultToGlobal=true") == {"mode": "READWRITE"}
    assert ask("PUT", "/mode/b", {"mode": "IMPORT"}) == {"mode": "IMPORT"}
    assert ask.register("b", record("z"), id=40, version=3) == 40
    assert ask("GET", "/subjects/b/versions") == [3]
    assert ask.code("POST", "/subjects/b/versions", {"schema": record("q"), "id": 40}) == 42205
    beyond = {"schema": record("q"), "id": 1 << 31}  # a head has four bytes for it
    assert ask.code("POST", "/subjects/b/versions", beyond) == 42205
    ask("PUT", "/mode/b", {"mode": "READWRITE"})
    assert ask.register("c", record("new")) == 41


def test_deletions_are_soft_then_hard(ask: Asking) -> None:
    """A soft one hides, and its schema stays by id; after a hard one the id isn't given out again."""
    for one in ("x", "y"):
        ask("PUT", "/config", {"compatibility": "NONE"})
        ask.register("a", record(one))
    assert ask("DELETE", "/subjects/a/versions/2") == 2
    assert ask.code("DELETE", "/subjects/a/versions/2") == 40406
    assert ask("GET", "/subjects/a/versions") == [1]
    assert ask("GET", "/subjects/a/versions?deleted=true") == [1, 2]
    assert ask("GET", "/subjects/a/versions/2?deleted=true")["deleted"] is True
    assert ask("GET", "/schemas/ids/2")["schema"]
    assert ask.register("a", record("y")) == 2
    assert ask("GET", "/subjects/a/versions") == [1, 3]
    assert ask("DELETE", "/subjects/a") == [1, 3]
    assert ask("GET", "/subjects") == []
    assert ask("GET", "/subjects?deleted=true") == ask("GET", "/subjects?deletedOnly=true") == ["a"]
    assert ask.code("DELETE", "/subjects/a") == 40404
    assert ask("DELETE", "/subjects/a?permanent=true") == [1, 2, 3]
    assert ask.code("GET", "/schemas/ids/2") == 40403
    assert ask("GET", "/subjects?deleted=true") == []
    assert ask.register("a", record("z")) == 3


def test_ids_survive_compaction(ask: Asking) -> None:
    """Of each key the last record stays, and tombstones go: the greatest id is still known."""
    ask.register("a", record("x"))
    ask("DELETE", "/subjects/a")
    ask("DELETE", "/subjects/a?permanent=true")
    assert isinstance(ask.store, MemoryStore)
    last = dict(ask.store.records)
    kept = [(key, value) for key, value in last.items() if value is not None]
    again = Asking(MemoryStore(kept))
    assert again("GET", "/subjects?deleted=true") == []
    assert again.register("a", record("y")) == 2


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"7",
        b'{"schema": 7}',
        b'{"schema": "x", "id": 9, "schemaType": "XML"}',
        b'{"metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
@pytest.mark.parametrize("keytype", [b"SCHEMA", b"CONFIG", b"MODE", b"DELETE_SUBJECT", b"OTHER"])
def test_what_others_write_into_the_topic_is_passed_over(value: bytes, keytype: bytes) -> None:
    """The registry, and the broker's check at produce, go on with the records behind it."""
    key = b'{"keytype": "%s", "subject": "a", "version": 1}' % keytype
    again = Asking(MemoryStore([(key, value), (b"[" * 100_000, b""), (b"7", value)]))
    assert again.register("a", record("x")) == 1
    assert again("GET", "/subjects") == ["a"]


def test_references_are_kept_and_guarded(ask: Asking) -> None:
    """A schema that another names can't be deleted; one that is missing is refused."""
    ask.register("user", '{"type": "fixed", "name": "user", "size": 4}')
    named = [{"name": "user", "subject": "user", "version": 1}]
    outer = json.dumps({"type": "record", "name": "o", "fields": [{"name": "u", "type": "user"}]})
    id_ = ask.register("order", outer, references=named)
    assert ask("GET", f"/schemas/ids/{id_}")["references"] == named
    assert ask("GET", "/subjects/user/versions/1/referencedby") == [id_]
    assert ask.code("DELETE", "/subjects/user/versions/1") == 42206
    assert ask.code("DELETE", "/subjects/user") == 42206
    ask("DELETE", "/subjects/order")
    assert ask("DELETE", "/subjects/user") == [1]


def test_protobuf_is_shown_as_a_descriptor_where_that_is_asked(ask: Asking) -> None:
    """Python's deserializer asks for it, whatever was registered."""
    id_ = ask.register("p", PROTO, schemaType="PROTOBUF")
    assert ask("GET", f"/schemas/ids/{id_}") == {"schema": PROTO, "schemaType": "PROTOBUF"}
    found = ask("GET", f"/schemas/ids/{id_}?format=serialized")["schema"]
    assert ask("POST", "/compatibility/subjects/p/versions",
               {"schema": found, "schemaType": "PROTOBUF"}) == {"is_compatible": True}  # fmt: skip
    refused = {"schema": record("x")}
    assert ask.code("POST", "/subjects/p/versions", refused) == 409


def test_a_subject_may_have_slashes_and_lists_have_pages(ask: Asking) -> None:
    """Subjects are found by their beginnings."""
    for name in ("a/b", "a/c", "b"):
        ask.register(name, record("x"))
    assert ask("GET", "/subjects/a%2Fb/versions") == [1]
    assert ask("GET", "/subjects?subjectPrefix=a/") == ["a/b", "a/c"]
    assert ask("GET", "/subjects?offset=1&limit=1") == ["a/c"]
    assert len(ask("GET", "/schemas?subjectPrefix=a/&latestOnly=true")) == 2
    assert ask("DELETE", "/subjects/a%2Fb/versions/latest") == 1


def test_a_password_guards_everything() -> None:
    """And without one, other names than this machine's aren't answered."""
    ask = Asking(password="a long password")
    ask("GET", "/subjects")
    assert ask.status == 401
    basic = b64encode(b"any:a long password").decode()
    assert ask("GET", "/subjects", headers={"Authorization": f"Basic {basic}"}) == []
    ask = Asking()
    ask("GET", "/subjects", headers={"Host": "elsewhere.example"})
    assert ask.status == 403
