"""From words to terms: the same for documents and for queries.

A word is brought to lower case, without accents, and to its stem; synonyms become one of them. Each
distinct word is looked at once and remembered (`Vocabulary`), so a batch of documents costs what its new
words cost, and a look-up for each distinct one.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.core.vectors import Vector
from penstock.errors import SchemaError
from penstock.searches.texts.cutting import WORD_CHARS_MAX, Words, cut, whole
from penstock.searches.texts.stopwords import ELISIONS, LANGUAGES, STOP_WORDS

__all__ = ["KEYWORD", "Analyzer", "Terms", "Vocabulary", "language_of"]

WORDS_MAX: Final = 1_000_000
"""Words that a vocabulary remembers, some 200 bytes each; then it begins anew."""

_MARKS: Final = range(0x0300, 0x0370)
_LETTERS: Final = str.maketrans(
    {"ø": "o", "đ": "d", "ł": "l", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ħ": "h", "\u0131": "i",
     "ß": "ss", "\u2019": "'", "\u2018": "'", "\uff07": "'"}
)  # fmt: skip


def language_of(name: str) -> str:
    """A stemmer's name, of its own or of ISO 639: `english`, `en`.

    Raises:
        SchemaError: there is none.
    """
    found = LANGUAGES.get(name.lower(), name.lower())
    if found not in LANGUAGES.values():
        known = ", ".join(sorted(set(LANGUAGES.values())))
        raise SchemaError(f"expected a language, one of {known}; found {name!r}")
    return found


@dataclass(frozen=True)
class Analyzer:
    """How texts become terms.

    Attributes:
        language: whose words are stemmed (Snowball): `english`, `en`. None: words stay as they are.
        stop_words: left out; `"default"` has those of the language.
        synonyms: groups that mean the same: words, or several words, which a query finds as a phrase.
        folds: letters lose their accents.
        whole: a value is one term, as it is: identifiers, names of states.
    """

    language: str | None = None
    stop_words: tuple[str, ...] | str = ()
    synonyms: tuple[tuple[str, ...], ...] = ()
    folds: bool = True
    whole: bool = False

    def __post_init__(self) -> None:
        if self.language is not None:
            object.__setattr__(self, "language", language_of(self.language))
        if isinstance(self.stop_words, str) and self.stop_words != "default":
            raise SchemaError(
                f"expected stop words as a list, or 'default'; found {self.stop_words!r}"
            )
        if self.stop_words == "default" and self.language not in STOP_WORDS:
            known = ", ".join(sorted(STOP_WORDS))
            raise SchemaError(
                f"expected stop words of a language that has a list, one of {known};"
                f" found {self.language!r}. List them"
            )

    def normalized(self, text: str) -> str:
        """A part of a word, as it is in terms but for stems: patterns are compared with that."""
        if self.whole:
            return text
        lower = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).lower()
        return _folded(lower) if self.folds else lower


KEYWORD: Final = Analyzer(whole=True)
"""Values as they are."""


@dataclass(frozen=True)
class Terms:
    """A column of texts as terms.

    Attributes:
        words: where they are.
        codes: int32[n], the number of each word's term in its vocabulary; -1: left out.
    """

    words: Words
    codes: Vector


class Vocabulary:
    """The terms of an analyzer, numbered as they come up."""

    def __init__(self, analyzer: Analyzer) -> None:
        self.analyzer = analyzer
        self.terms: list[str] = []
        self._codes: dict[str, int] = {}
        self._of_word: dict[str, int] = {}
        self._stop = _stop_words(analyzer)
        self._elided = ELISIONS.get(analyzer.language or "", frozenset())

    def __len__(self) -> int:
        return len(self.terms)

    @property
    def is_full(self) -> bool:
        """It remembers as many words as it may."""
        return len(self._of_word) > WORDS_MAX

    @cached_property
    def _stem(self) -> Any:
        if self.analyzer.language is None:
            return None
        import snowballstemmer

        return snowballstemmer.stemmer(self.analyzer.language).stemWord

    @cached_property
    def _synonyms(self) -> dict[str, str]:
        """Of each term that is a synonym, the first of its group that is one word."""
        found: dict[str, str] = {}
        for group in self.analyzer.synonyms:
            terms = [self._plain(one.lower()) for one in group if not _is_several(one)]
            names = [one for one in terms if one is not None]
            first = next((found[one] for one in names if one in found), names[0] if names else "")
            found.update(dict.fromkeys(names, first))
        return found

    def code(self, term: str) -> int | None:
        """The number of a term, if it came up."""
        return self._codes.get(term)

    def terms_of(self, column: pa.Array) -> Terms:
        """Of each text, the terms."""
        words = whole(column) if self.analyzer.whole else cut(column)
        distinct: Any = words.texts.dictionary_encode()
        known = self._of_word
        codes = [known.get(one, -2) for one in distinct.dictionary.to_pylist()]
        table = np.array(codes, np.int32)
        for i in np.flatnonzero(table == -2).tolist():
            table[i] = self._learn(distinct.dictionary[i].as_py())
        places = distinct.indices.to_numpy(zero_copy_only=False)
        return Terms(words, table[places] if len(places) else np.empty(0, np.int32))

    def analyzed(self, text: str) -> list[tuple[str, int]]:
        """A query's text as terms with their positions."""
        words = text.lower().split()
        if not self.analyzer.whole and text.isascii() and all(map(str.isalnum, words)):
            known = [
                (self._of_word.get(one, -2), one) for one in words if len(one) < WORD_CHARS_MAX
            ]
            if len(known) == len(words):  # as most queries have them: no column is needed
                codes = [self._learn(one) if code == -2 else code for code, one in known]
                return [(self.terms[code], i) for i, code in enumerate(codes) if code >= 0]
        found = self.terms_of(pa.array([text], pa.string()))
        return [
            (self.terms[code], position)
            for code, position in zip(
                found.codes.tolist(), found.words.position.tolist(), strict=True
            )
            if code >= 0
        ]

    def others(self, text: str) -> list[str]:
        """Synonyms of several words of a query's text, or of one word if the text has several."""
        lower = " ".join(text.lower().split())
        return [
            one
            for group in self.analyzer.synonyms
            if lower in (names := [" ".join(one.lower().split()) for one in group])
            for one in names
            if one != lower and (_is_several(one) or _is_several(lower))
        ]

    def _learn(self, word: str) -> int:
        """The code of a word that is new."""
        term = self._term(word)
        code = -1
        if term:
            code = self._codes.setdefault(term, len(self.terms))
            if code == len(self.terms):
                self.terms.append(term)
        self._of_word[word] = code
        return code

    def _term(self, word: str) -> str | None:
        if self.analyzer.whole:
            return word
        term = self._plain(word)
        return term if term is None else self._synonyms.get(term, term)

    def _plain(self, word: str) -> str | None:
        """A word in lower case, stemmed, without accents; None: it is left out."""
        if not word.isascii():
            word = unicodedata.normalize("NFKC", word).lower().replace("\u2019", "'")
        if self._elided and "'" in word:
            article, _, rest = word.partition("'")
            word = rest if article in self._elided and rest else word
        if word in self._stop:
            return None
        if self._stem is not None:
            word = self._stem(word)
        return _folded(word) if self.analyzer.folds else word


def _is_several(text: str) -> bool:
    return len(text.split()) > 1


def _stop_words(analyzer: Analyzer) -> frozenset[str]:
    if isinstance(analyzer.stop_words, str):
        return STOP_WORDS[analyzer.language or ""]
    return frozenset(one.lower() for one in analyzer.stop_words)


def _folded(word: str) -> str:
    """Latin and Greek letters without their accents."""
    if word.isascii():
        return word
    kept: list[str] = []
    for one in unicodedata.normalize("NFD", word):
        if ord(one) in _MARKS and kept and _loses_marks(kept[-1]):
            continue
        kept.append(one)
    return unicodedata.normalize("NFC", "".join(kept)).translate(_LETTERS)


def _loses_marks(letter: str) -> bool:
    return ord(letter) < 0x0400 or 0x1D00 <= ord(letter) < 0x2000
