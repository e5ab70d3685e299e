"""Access control lists against a model that looks at every rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.broker.security.acls import (
    SUPPORTED,
    Acl,
    AclFilter,
    AclSet,
    PatternType,
    Permission,
    acl_fault,
)
from penstock.broker.security.authorizer import Authorizer
from penstock.broker.security.model import Operation, ResourceType
from penstock.errors import LimitError, SetupError, UserError

ANN, BOB = "User:ann", "User:bob"
NAMES = st.sampled_from(["a", "ab", "abc", "b", "*", "kafka-cluster"])
PRINCIPALS = st.sampled_from([ANN, BOB, "User:*"])
HOSTS = st.sampled_from(["*", "10.0.0.1", "10.0.0.2"])
OPERATIONS = st.sampled_from([one for one in Operation if one > Operation.ANY])
TYPES = st.sampled_from(list(SUPPORTED))
ACLS = st.builds(
    Acl,
    TYPES,
    NAMES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    PRINCIPALS,
    HOSTS,
    OPERATIONS,
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
).filter(lambda acl: acl_fault(acl) is None)


def naive(
    acls: list[Acl],
    who: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    none: bool,
) -> bool:
    """Kafka's rules, word for word."""
    about = [
        one
        for one in acls
        if one.resource_type == kind
        and (
            (one.pattern == PatternType.LITERAL and one.name in (name, "*"))
            or (one.pattern == PatternType.PREFIXED and name.startswith(one.name))
        )
    ]
    if not about:
        return none
    matching = [
        one for one in about if one.principal in (who, "User:*") and one.host in (host, "*")
    ]
    same = (operation, Operation.ALL)
    if any(one.permission == Permission.DENY and one.operation in same for one in matching):
        return False
    allowed = {one.operation for one in matching if one.permission == Permission.ALLOW}
    o = Operation
    if operation == o.DESCRIBE and allowed & {o.READ, o.WRITE, o.DELETE, o.ALTER}:
        return True
    if operation == o.DESCRIBE_CONFIGS and o.ALTER_CONFIGS in allowed:
        return True
    return bool(allowed & set(same))


@settings(max_examples=examples(300), deadline=None)
@given(
    acls=st.lists(ACLS, max_size=12),
    who=st.sampled_from([ANN, BOB]),
    host=st.sampled_from(["10.0.0.1", "10.0.0.3"]),
    operation=OPERATIONS,
    kind=TYPES,
    name=st.sampled_from(["a", "ab", "abcd", "c", "kafka-cluster"]),
    none=st.booleans(),
)
def test_answers_are_kafkas(
    acls: list[Acl],
    who: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    none: bool,
) -> None:
    """The tables give the answer that looking at every rule gives."""
    known = AclSet(allow_if_none=none)
    known.replace(acls)
    known.check()
    expected = naive(acls, who, host, operation, kind, name, none)
    assert known.allows(who, host, operation, kind, name) is expected
    boss = AclSet([who])
    boss.replace(acls)
    assert boss.allows(who, host, operation, kind, name)


@settings(max_examples=examples(200), deadline=None)
@given(acls=st.lists(ACLS, max_size=8), operation=OPERATIONS, kind=TYPES)
def test_some_resource(acls: list[Acl], operation: Operation, kind: ResourceType) -> None:
    """Whatever is allowed by name is allowed for some name; nothing is where all is denied."""
    known = AclSet()
    known.replace(acls)
    some = known.allows_some(ANN, "10.0.0.1", operation, kind)
    candidates = {one.name for one in acls} | {one.name + "zz" for one in acls}
    named = any(known.allows(ANN, "10.0.0.1", operation, kind, name) for name in candidates - {"*"})
    assert some or not named
    if some:
        assert any(one.permission is Permission.ALLOW for one in acls)


@settings(max_examples=examples(200), deadline=None)
@given(acls=st.lists(ACLS, max_size=10, unique=True), name=NAMES)
def test_filters(acls: list[Acl], name: str) -> None:
    """A filter of kind MATCH finds what is about a name; an empty one finds everything; a rule's own
    fields find it alone.
    """
    known = AclSet()
    known.replace(acls)
    assert known.find(AclFilter()) == sorted(acls)
    matching = known.find(AclFilter(ResourceType.TOPIC, name, PatternType.MATCH))
    assert set(matching) == set(known.about(ResourceType.TOPIC, name))
    for one in acls:
        own = AclFilter(
            one.resource_type,
            one.name,
            one.pattern,
            one.principal,
            one.host,
            one.operation,
            one.permission,
        )
        assert known.find(own) == [one]


def rule(name: str = "orders", **changes: object) -> Acl:
    """A rule that ann may read a topic."""
    fields = {
        "resource_type": ResourceType.TOPIC,
        "name": name,
        "pattern": PatternType.LITERAL,
        "principal": ANN,
        "host": "*",
        "operation": Operation.READ,
        "permission": Permission.ALLOW,
    }
    return Acl(**(fields | changes))


def test_rules_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules survive a restart; a change by another process is taken up; a broken file is told and
    does not replace what was known; their number has a limit.
    """
    first = Authorizer(tmp_path)
    assert not first.is_on
    first.add([rule(), rule(permission=Permission.DENY, operation=Operation.ALL)])
    assert first.is_on
    second = Authorizer(tmp_path)
    assert set(second.acls) == set(first.acls)
    assert second.remove([AclFilter(permission=Permission.DENY)]) == [
        [rule(permission=Permission.DENY, operation=Operation.ALL)]
    ]
    generation = first.generation
    first.refresh()
    assert set(first.acls) == {rule()}
    assert first.generation > generation
    first.remove([AclFilter()])
    assert first.is_on
    assert Authorizer(tmp_path).is_on
    first.add([rule()])
    monkeypatch.setattr("penstock.broker.security.authorizer.ACLS_MAX", 2)
    with pytest.raises(LimitError):
        first.add([rule("b"), rule("c")])
    (tmp_path / "security" / "acls.json").write_text("{}")
    first.refresh()
    assert set(first.acls) == {rule()}
    with pytest.raises(SetupError, match="acls"):
        Authorizer(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": ResourceType.DELEGATION_TOKEN},
        {"resource_type": ResourceType.ANY},
        {"resource_type": ResourceType.CLUSTER, "operation": Operation.CREATE},
        {"operation": Operation.IDEMPOTENT_WRITE},
        {"operation": Operation.ANY},
        {"pattern": PatternType.MATCH},
        {"permission": Permission.ANY},
        {"principal": "ann"},
        {"name": ""},
        {"host": "x" * 5000},
    ],
)
def test_rules_that_make_no_sense(tmp_path: Path, wrong: dict[str, object]) -> None:
    """Each is refused with what was expected."""
    with pytest.raises(UserError, match="expected"):
        Authorizer(tmp_path).add([rule(**wrong)])
