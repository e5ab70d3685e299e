"""The vocabulary of the wire against Kafka's message descriptors, and against what the broker serves."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode as KafkaErrorCode
from kio.schema.index import api_key_map

import penstock
from penstock.broker.handlers import API_TABLE
from penstock.client.network.errors import RETRIABLE
from penstock.wire.protocol import ApiKey, ErrorCode, error_name

SOURCE = Path(penstock.__file__).parent
NAMED = {"Api": 0, "broker_error": 0, "call": 1, "begin_call": 1}
"""What is given a request type or an error code, and as which argument."""


def test_names_are_kafkas() -> None:
    """Request types and error codes have the names and numbers of Kafka's descriptors, and all of them."""
    assert {one.value: one.name.lower() for one in ApiKey} == dict(api_key_map)
    assert {one.value: one.name.lower() for one in ErrorCode} == {
        int(one): one.name for one in KafkaErrorCode
    }


def test_an_unknown_code_has_a_name() -> None:
    """A newer broker's error code is shown by its number."""
    assert error_name(-1) == "UNKNOWN_SERVER_ERROR"
    assert error_name(30_000) == "error 30000"


def test_what_is_tried_again_is_retriable_for_kafka() -> None:
    """The client tries nothing again that Kafka's clients take for final, but quotas and closed brokers."""
    ours = {KafkaErrorCode(code) for code in RETRIABLE}
    final = {one.name for one in ours if not one.retriable}
    assert final == {"broker_not_available"}


def test_members_are_plain_numbers() -> None:
    """A member is packed, compared, looked up and printed like its number."""
    assert f"{ApiKey.FETCH} {ErrorCode.INVALID_CONFIG}" == "1 40"
    assert {1: "found"}[ApiKey.FETCH] == "found"
    assert all(key is api.key for key, api in API_TABLE.items())


def test_names_need_no_schema() -> None:
    """Worker processes name error codes without loading Kafka's schemas."""
    code = "import sys, penstock.wire.protocol; sys.exit(any('kio' in one for one in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("package", ["broker", "client", "engine"])
def test_no_naked_numbers(package: str) -> None:
    """Requests and errors are named: no request type or error code is written as a number."""
    naked = [
        f"{path.relative_to(SOURCE)}:{one.lineno}"
        for path in (SOURCE / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for one in _codes(node)
        if _is_number(one)
    ]
    assert not naked, "expected ApiKey and ErrorCode; found numbers"


def _codes(node: ast.AST) -> list[ast.expr]:
    """Expressions that are request types or error codes."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=words):
            given = args[NAMED[name] :][:1] if name in NAMED else []
            return given + [one.value for one in words if one.arg == "code"]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == "error_code"]
        case ast.Compare(left=left, comparators=others) if "error_code" in ast.unparse(left):
            return [*others, *(one for each in others for one in getattr(each, "elts", ()))]
        case _:
            return []


def _is_number(node: ast.expr) -> bool:
    """Whether it is a number other than 0, which is no error."""
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value != 0
