"""Programs in SQL on the command line: checked, tested, and the examples with their tests."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from penstock.cli.entry import main
from penstock.cli.support.cases import cases_of
from penstock.errors import UserError

EXAMPLES = Path(__file__).parents[3] / "examples"
PROGRAM = """
CREATE TABLE users (id BIGINT PRIMARY KEY, name STRING) WITH (topic = 'people', partitions = 4);
CREATE STREAM clicks (user_id BIGINT, ms DOUBLE, at TIMESTAMP,
                      WATERMARK FOR at AS at - INTERVAL 10 SECONDS);
CREATE MATERIALIZED VIEW per_user AS
  SELECT users.name, count(*) AS n, sum(ms) AS ms, max(at) AS newest
  FROM clicks JOIN users ON users.id = clicks.user_id GROUP BY users.name;
"""
GIVEN = """
    - given:
        users: [{id: 1, name: Ada}]
        clicks: [{user_id: 1, ms: 0.1, at: 12:00:00}, {user_id: 1, ms: 0.2, at: 2000-01-01 12:00:05Z}]
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.sql").write_text(PROGRAM)
    return tmp_path


def written(shop: Path, expect: str) -> Path:
    file = shop / "shop.test.yaml"
    file.write_text(f"tests:\n  counts clicks:{GIVEN}      expect: {expect}\n")
    return file


def test_a_right_program_is_described(shop: Path) -> None:
    """What it reads and makes, with types; and nothing is made on the disk."""
    done = run("check", shop / "shop.sql", "--format", "json")
    assert done.exit_code == 0
    said = orjson.loads(done.output)
    assert said["ok"]
    assert said["tables"] == {"people": {"id": "BIGINT", "name": "STRING"}}
    assert said["views"]["per_user"]["newest"] == "TIMESTAMP"
    assert "view per_user (name STRING, n BIGINT" in run("check", shop / "shop.sql").output
    assert [one.name for one in shop.iterdir()] == ["shop.sql"]


def test_a_wrong_program_is_an_error_with_its_line(shop: Path) -> None:
    """All programs are checked; the code is 1 if one has an error."""
    (shop / "wrong.sql").write_text(PROGRAM.replace("users.name,", "users.nme,"))
    done = run("check", shop / "wrong.sql", shop / "shop.sql", "--format", "json")
    assert done.exit_code == 1
    wrong, right = [orjson.loads(line) for line in done.output.splitlines()]
    assert right["ok"]
    assert not wrong["ok"]
    assert "nme" in wrong["error"]
    assert wrong["line"] == 5


def test_a_passing_test_passes(shop: Path) -> None:
    """Values are read as the column's type: times of day, instants, sums of doubles."""
    written(shop, "{per_user: [{name: Ada, n: 2, ms: 0.3, newest: 12:00:05}]}")
    done = run("test", shop / "shop.sql")
    assert done.exit_code == 0, done.output
    assert "1 passed, 0 failed" in done.output


def test_a_difference_is_shown_row_by_row(shop: Path) -> None:
    """Expected rows that are missing have a minus, rows that were found a plus; the code is 1."""
    file = written(shop, "{per_user: [{name: Ada, n: 3}, {name: Bob, n: 1}]}")
    done = run("test", file)
    assert done.exit_code == 1
    assert done.output.splitlines()[1:] == [
        "        per_user: expected rows (-) and found rows (+) differ; 1 found",
        "            name  n",
        "          + Ada   2",
        "          - Ada   3",
        "          - Bob   1",
        "0 passed, 1 failed",
    ]
    assert not orjson.loads(run("test", file, "--format", "json").output)["passed"]


def test_rows_that_go_and_time_that_passes_are_steps(shop: Path) -> None:
    """A deletion by key takes a table's row away; the same in JSON."""
    given = {"users": [{"id": 1, "name": "Ada"}], "clicks": [{"user_id": 1, "at": "12:00:00"}]}
    steps = [
        {"given": given, "advance": "1 minute", "expect": {"per_user": [{"n": 1}]}},
        {"delete": {"users": [{"name": "Ada", "id": 1}]}, "expect": {"per_user": []}},
    ]
    (shop / "shop.test.json").write_bytes(orjson.dumps({"tests": {"goes": steps}}))
    done = run("test", shop)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tests: {}", "expected tests: in"),
        ("test: {}", "found 'test'"),
        ("tests: {a: [{expects: {}}]}", "found 'expects' (did you mean 'expect'?)"),
        ("tests: {a: [1]}", "expected steps of 'a'"),
        ("tests: {a: [{given: {}}]}", "expected a step of 'a'"),
        ("- 1", "expected a mapping"),
        ("tests: [", "expected YAML"),
    ],
)
def test_a_wrong_file_of_tests_says_what_was_expected(shop: Path, text: str, said: str) -> None:
    """Names that don't exist, and other forms, are errors that name the file."""
    file = shop / "shop.test.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(said)) as error:
        cases_of(file)
    assert str(file) in str(error.value)


def test_columns_may_be_called_as_arguments(tmp_path: Path) -> None:
    """A column `topic` or `partition` is sent as any other; a deletion needs a table and its key."""
    (tmp_path / "lag.sql").write_text(
        "CREATE STREAM lag (topic STRING, partition BIGINT, self BIGINT);"
        "CREATE MATERIALIZED VIEW worst AS SELECT topic, max(partition) AS p FROM lag GROUP BY topic;"
    )
    file = tmp_path / "lag.test.yaml"
    row = "{topic: a, partition: 7, self: 1}"
    file.write_text(f"tests: {{a: [{{given: {{lag: [{row}]}}, expect: {{worst: [{{p: 7}}]}}}}]}}")
    done = run("test", file)
    assert done.exit_code == 0, done.output
    file.write_text("tests: {a: [{delete: {lag: [{topic: a}]}, expect: {worst: []}}]}")
    assert "expected the key of a table's row" in run("test", file).output


def test_unknown_names_fail_the_test(shop: Path) -> None:
    """A view or column that the program lacks is said, with what was perhaps meant."""
    assert "'per_usr'" in run("test", written(shop, "{per_usr: []}")).output
    assert "found 'nam'" in run("test", written(shop, "{per_user: [{nam: Ada}]}")).output


@pytest.mark.parametrize("name", ["shop.sql", "timeline.sql"])
def test_examples_pass_their_tests(name: str) -> None:
    """The examples in SQL are right, and do what the tests beside them say."""
    assert run("check", EXAMPLES / name).exit_code == 0
    done = run("test", EXAMPLES / name)
    assert done.exit_code == 0, done.output
    assert done.output.endswith("2 passed, 0 failed\n")
