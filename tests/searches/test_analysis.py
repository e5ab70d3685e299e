"""From texts to terms."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from penstock.searches.analysis import KEYWORD, Analyzer, Vocabulary
from penstock.searches.texts.cutting import WORD_CHARS_MAX, cut


def terms(text: str, analyzer: Analyzer | None = None) -> list[str]:
    """The terms of a text."""
    return [term for term, _ in Vocabulary(analyzer or Analyzer()).analyzed(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The storm, over-night!", ["the", "storm", "over", "night"]),
        ("don't 3.14 1,000 a.b x_y _ U.S.A.", ["don't", "3.14", "1,000", "a.b", "x_y", "u.s.a"]),
        ("Talk:Berlin a'1 1.a", ["talk", "berlin", "a", "1", "1", "a"]),
        ("Straße Élan naïve Łódź", ["strasse", "elan", "naive", "lodz"]),
        ("don\u2019t", ["don't"]),
        ("東京都に AB 漢 カタカナ", ["東京", "京都", "都に", "ab", "漢", "カタ", "タカ", "カナ"]),
        ("한국어 ไทย", ["한국", "국어", "ไทย"]),
        ("\uff46\uff55\uff4c\uff4c \ufb01ne m\u00b2", ["full", "fine", "m2"]),
        ("good 👍🏽 👍", ["good", "👍🏽", "👍"]),
        ("e\u0301te\u0301", ["ete"]),
        ("", []),
    ],
)
def test_texts_are_cut_at_word_boundaries(text: str, expected: list[str]) -> None:
    """Words are those of Unicode, in lower case and without accents; scripts without blanks are in pairs."""
    assert terms(text) == expected


def test_words_have_their_places() -> None:
    """Each word has its value, its position, and its first and last byte."""
    found = cut(pa.array(["Zürich 東京都", None, "", "a  b"]))
    assert found.value.tolist() == [0, 0, 0, 3, 3]
    assert found.position.tolist() == [0, 1, 2, 0, 1]
    assert found.start.tolist() == [0, 8, 11, 0, 3]
    assert found.end.tolist() == [7, 14, 17, 1, 4]
    assert found.texts.to_pylist() == ["zürich", "東京", "京都", "a", "b"]


def test_a_slice_of_a_column_is_cut_like_a_copy() -> None:
    """Offsets of a column's slice don't begin at 0."""
    column = pa.array(["one", "two three", None, "four"])
    assert cut(column.slice(1)).texts.to_pylist() == ["two", "three", "four"]
    assert cut(column.slice(1)).value.tolist() == [0, 0, 2]


def test_long_words_are_cut() -> None:
    """No term is longer than a limit."""
    found = cut(pa.array(["x" * (2 * WORD_CHARS_MAX + 1)]))
    assert [len(one) for one in found.texts.to_pylist()] == [WORD_CHARS_MAX, WORD_CHARS_MAX, 1]


@pytest.mark.parametrize(
    ("analyzer", "text", "expected"),
    [
        (Analyzer("en"), "running runs cities", ["run", "run", "citi"]),
        (Analyzer("german"), "Häuser Haus", ["haus", "haus"]),
        (
            Analyzer("fr"),
            "l\u2019avion qu'elle d'hôtel aujourd'hui",
            ["avion", "elle", "hotel", "aujourd'hui"],
        ),
        (Analyzer("en", stop_words="default"), "the storm of it", ["storm"]),
        (Analyzer(stop_words=("Storm",)), "the storm", ["the"]),
        (Analyzer("en", synonyms=(("car", "automobile"),)), "cars automobiles", ["car", "car"]),
        (Analyzer(folds=False), "Élan", ["élan"]),
        (KEYWORD, "In Transit", ["In Transit"]),
    ],
)
def test_terms_follow_the_analyzer(analyzer: Analyzer, text: str, expected: list[str]) -> None:
    """Stems, stop words, synonyms and articles are those of the language and the options."""
    assert terms(text, analyzer) == expected


def test_stop_words_keep_their_positions() -> None:
    """A word that is left out leaves a gap."""
    found = Vocabulary(Analyzer("en", stop_words="default")).analyzed("fall of the wall")
    assert found == [("fall", 0), ("wall", 3)]


def test_a_query_is_analyzed_like_a_document() -> None:
    """The short way for plain words gives what the way over columns gives."""
    analyzer = Analyzer("en", stop_words="default", synonyms=(("car", "automobile"),))
    for text in ("The CARS of automobiles", "a b", "2nd cars", "  x "):
        assert Vocabulary(analyzer).analyzed(text) == Vocabulary(analyzer).analyzed(text + " ,")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Analyzer("klingon"),
        lambda: Analyzer(stop_words="default"),
        lambda: Analyzer("en", stop_words="all"),
    ],
)
def test_unknown_languages_are_refused(make: type[Analyzer]) -> None:
    """An error says which languages there are."""
    with pytest.raises(SchemaError, match=r"expected .*; found"):
        make()
