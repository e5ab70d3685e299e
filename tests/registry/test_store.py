"""The registry's records in a log: several registries decide as one, and a restart forgets nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.registry.asking import Asking, record

from penstock.broker.process import BrokerProcess
from penstock.client import Client
from penstock.client.topic_admin import TopicAdmin
from penstock.registry import LogStore, MemoryStore, Registry

_topics = (f"schemas-{number}" for number in itertools.count())


@pytest.fixture
def topic() -> str:
    return next(_topics)


@pytest.fixture
def stores(broker: BrokerProcess, topic: str) -> Iterator[list[LogStore]]:
    """Three registries of one topic."""
    found = [LogStore(broker.address, topic) for _ in range(3)]
    yield found
    for one in found:
        one.close()


def test_racing_writers_give_each_schema_one_id(stores: list[LogStore]) -> None:
    """All register the same schemas in other orders: each gets the id that the first gave it."""
    given: list[dict[str, int]] = [{}, {}]
    failed: list[BaseException] = []

    def work(at: int) -> None:
        try:
            registry = Registry(stores[at])
            for number in range(3):
                name = f"f{(number + at) % 3}"
                body = {"schema": record(name, name=name)}
                given[at][name] = registry.register(f"of-{name}", body)["id"]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failed == []
    assert given[0] == given[1]
    assert sorted(given[0].values()) == [1, 2, 3]
    assert len(list(stores[0].fresh().entries())) == 3


def test_racing_versions_are_checked_against_each_other(stores: list[LogStore]) -> None:
    """A schema that is compatible with what a registry has read, but not with what another wrote."""
    one, other = (Registry(store) for store in stores[:2])
    one.register("a", {"schema": record("x")})
    other.versions("a")
    one.register("a", {"schema": record("x", "y", default=True)})
    asking = Asking(stores[1])
    assert asking.code("POST", "/subjects/a/versions", {"schema": record("q")}) == 409
    assert other.register("a", {"schema": record("x")})["version"] == 1


def test_a_writer_that_was_overtaken_decides_again(stores: list[LogStore]) -> None:
    """Another takes over between its reading and its writing: nothing of the first try is written."""
    late, early = (Registry(store) for store in stores[:2])
    late.register("first", {"schema": record("a")})
    decide, seen = late._entry_for, []

    def overtaken(*args: object, **more: object) -> object:
        found = decide(*args, **more)  # type: ignore[arg-type]
        seen.append(found[0].id)
        if len(seen) == 2:  # the first was before it was the writer
            early.register("second", {"schema": record("b")})
        return found

    late._entry_for = overtaken  # type: ignore[method-assign, assignment]
    assert late.register("third", {"schema": record("c")})["id"] == 3
    assert seen == [2, 2, 3]
    stores[2].fresh().check()
    assert [one.id for one in stores[2].fresh().entries()] == [1, 2, 3]


def test_a_registry_that_starts_again_knows_all(
    broker: BrokerProcess, topic: str, stores: list[LogStore]
) -> None:
    """Configs, modes and deletions too; the topic is compacted."""
    ask = Asking(stores[0])
    ask.register("a", record("x"))
    ask.register("b", record("y"))
    ask("PUT", "/config/a", {"compatibility": "FULL"})
    ask("PUT", "/mode/a", {"mode": "READONLY"})
    ask("DELETE", "/subjects/b")
    ask("DELETE", "/subjects/b?permanent=true")
    again = Asking(stores[1])
    assert again("GET", "/subjects?deleted=true") == ["a"]
    assert again("GET", "/config/a") == {"compatibilityLevel": "FULL"}
    assert again("GET", "/mode/a") == {"mode": "READONLY"}
    assert again.register("c", record("z")) == 3
    with TopicAdmin(broker.address) as admin:
        assert ("cleanup.policy", "compact") in {one[:2] for one in admin.configs(topic)}


def test_a_topic_that_forgets_is_refused(
    broker: BrokerProcess, topic: str, stores: list[LogStore]
) -> None:
    """A broker makes a topic for whoever asks for it: schemas would be deleted after a week."""
    with Client(broker.address) as client:
        client.create_topic(topic, 1)
    ask = Asking(stores[0])
    assert ask.code("GET", "/subjects") == 50001
    assert "cleanup.policy=compact" in ask.answer.text
    with TopicAdmin(broker.address) as admin:
        admin.change_configs(topic, {"cleanup.policy": "compact"})
    assert ask("GET", "/subjects") == []


def test_a_log_that_is_away_is_an_error_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Confluent's code for that."""
    monkeypatch.setattr("penstock.registry.store.PATIENCE_S", 0.0)
    store = LogStore("127.0.0.1:1")
    ask = Asking(store)
    assert ask.code("GET", "/subjects") == 50001
    assert ask.status == 500


def test_requests_do_not_wait_for_a_long_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one schema is compared, others are read and registered; each comparison is made once."""
    ask = Asking()
    ask.register("slow", record("a", name="slow"))
    begun, end, compared = threading.Event(), threading.Event(), []

    def compare(*arguments: Any) -> list[Any]:
        compared.append(arguments)
        begun.set()
        assert end.wait(PATIENCE_S)
        return []

    monkeypatch.setattr("penstock.registry.service.breaks_between", compare)
    slow = threading.Thread(target=ask.register, args=("slow", record("b", name="slow")))
    slow.start()
    try:
        assert begun.wait(PATIENCE_S)
        other = Asking.of(ask)
        assert other("GET", "/subjects/slow/versions") == [1]
        assert other.register("other", record("c", name="other")) == 2
    finally:
        end.set()
        slow.join()
    assert ask("GET", "/subjects/slow/versions") == [1, 2]
    assert len(compared) == 1


def test_a_state_that_was_given_does_not_change() -> None:
    """Who reads it reads it whole."""
    store = MemoryStore()
    registry = Registry(store)
    before = store.fresh()
    registry.register("s", {"schema": record("a")})
    assert before.by_subject == {}
    assert [one.version for one in store.fresh().entries()] == [1]
