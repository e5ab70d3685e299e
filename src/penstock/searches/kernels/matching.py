"""The kernels: a batch of documents against stored queries.

Of each document, its leaves are marked; the lists of queries under these leaves are its candidates, each of
them once; and each candidate's program is evaluated on the marks. So a batch costs what its leaves and its
candidates cost. Marks are numbers of documents: nothing is cleared in between.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from penstock.core.kernels import njit, types
from penstock.searches.kernels.moving import size_of
from penstock.searches.programs import EARTH_RADIUS_METRES, POSITIVE, REPEATS, Op

__all__ = ["by_group", "choose", "expanded", "found_words", "matched"]

_I32 = types.Array(types.int32, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_F64 = types.Array(types.float64, 1, "C", readonly=True)
_I32_2 = types.Array(types.int32, 2, "C", readonly=True)
_BOOL = types.Array(types.boolean, 1, "C", readonly=True)

_TERM: Final = int(Op.TERM)
_LEAF: Final = int(Op.LEAF)
_PHRASE: Final = int(Op.PHRASE)
_RANGE: Final = int(Op.RANGE)
_DISTANCE: Final = int(Op.DISTANCE)
_BOX: Final = int(Op.BOX)
_ALL: Final = int(Op.ALL)
_NONE: Final = int(Op.NONE)
_BOOLEAN: Final = int(Op.BOOLEAN)
_IDF: Final = 0.28768207245178085
"""log(1 + 0.5 / 1.5): of a term in a collection of the one document that has it (BM25)."""
_K1: Final = 1.2
_RADIUS: Final = EARTH_RADIUS_METRES


@njit(types.int32[::1](_I32, types.int64), cache=True, nogil=True)
def by_group(groups: Any, count: Any) -> Any:
    """The order of rows by their groups' numbers, stable, behind where each group begins.

    Returns:
        int32[count + 1 + n].
    """
    out = np.zeros(count + 1 + len(groups), np.int32)
    for group in groups:
        out[group + 1] += 1
    for group in range(count):
        out[group + 1] += out[group]
    place = out[: count + 1].copy()
    for row in range(len(groups)):
        group = groups[row]
        out[count + 1 + place[group]] = row
        place[group] += 1
    return out


@njit(types.int64(_I32, _I32, _I32, _I32, _I32, types.int32[::1], types.int32[::1], types.int32[::1],
      types.int32[::1]), cache=True, nogil=True)  # fmt: skip
def expanded(
    codes: Any, rows: Any, positions: Any, starts: Any, leaves: Any,
    out_row: Any, out_leaf: Any, out_position: Any, out_word: Any,
) -> Any:  # fmt: skip
    """Words to leaves: those under the code of each word. Gives their number, which may exceed the room."""
    n = np.int64(0)
    for i in range(len(codes)):
        code = codes[i]
        if code < 0:
            continue
        for at in range(starts[code], starts[code + 1]):
            if n < len(out_row):
                out_row[n], out_leaf[n] = rows[i], leaves[at]
                out_position[n], out_word[n] = positions[i], i
            n += 1
    return n


@njit(types.void(_I64, _I32, _I32, _F64, types.int32[::1]), cache=True, nogil=True)
def choose(query_sets: Any, set_starts: Any, set_leaves: Any, weight: Any, out: Any) -> None:
    """Of each query's sets of leaves the one whose leaves are rarest; -1 where it has none."""
    for q in range(len(query_sets) - 1):
        best = -1
        least = np.inf
        for s in range(query_sets[q], query_sets[q + 1]):
            cost = 0.0
            for at in range(set_starts[s], set_starts[s + 1]):
                cost += weight[set_leaves[at]]
            if cost < least:
                least = cost
                best = s
        out[q] = best


@njit(types.UniTuple(types.float64, 2)(_I32, types.int64, types.int64, types.int64, types.int64,
      types.int64, types.int64[::1], types.int32[::1], types.int32[::1], _I32, types.int64,
      types.int64[::1]), cache=True, nogil=True)  # fmt: skip
def _phrase(
    code: Any, at: Any, count: Any, slop: Any, repeats: Any,
    document: Any, stamp: Any, first: Any, following: Any, position: Any, mark: Any, marks: Any,
) -> Any:  # fmt: skip
    """How often a phrase occurs, weighted by how far its terms are moved, and whether it does.

    A phrase begins where its leftmost term is, moved back by its offset. From there each term must be at most
    `slop` positions farther than it should; of a term that occurs several times in the phrase each takes
    another position, the leftmost that is free. If `marks` has places, those of its words get the `mark`.
    """
    for i in range(count):
        if stamp[code[at + 2 * i]] != document:
            return 0.0, 0.0
    frequency = 0.0
    heads = np.empty(count, np.int32)
    words = np.empty(count, np.int32)
    before = np.full(count, -1, np.int32)  # of a term, where it is in the phrase before
    if repeats:
        for i in range(count):
            for j in range(i):
                if code[at + 2 * j] == code[at + 2 * i]:
                    before[i] = j
    last_begin = np.int64(-(2**62))
    for i in range(count):
        heads[i] = first[code[at + 2 * i]]
    while True:
        # The least begin that isn't tried yet.
        begin = np.int64(2**62)
        for i in range(count):
            while heads[i] >= 0 and position[heads[i]] - code[at + 2 * i + 1] <= last_begin:
                heads[i] = following[heads[i]]
            if heads[i] >= 0:
                begin = min(begin, np.int64(position[heads[i]] - code[at + 2 * i + 1]))
        if begin == 2**62:
            break
        last_begin = begin
        farthest = begin
        fits = True
        for i in range(count):
            offset = code[at + 2 * i + 1]
            token = heads[i]
            if before[i] >= 0:
                taken = words[before[i]]
                if token >= 0 and position[token] <= position[taken]:
                    token = following[taken]
            if token < 0 or position[token] - offset > begin + slop:
                fits = False
                break
            words[i] = token
            farthest = max(farthest, np.int64(position[token] - offset))
        if fits:
            frequency += 1.0 / (1.0 + (farthest - begin))
            if len(marks):
                for i in range(count):
                    marks[words[i]] = mark
    return frequency, 1.0 if frequency > 0 else 0.0


@njit(
    types.float64(types.float64, types.float64, types.float64, types.float64),
    cache=True,
    nogil=True,
)
def _metres(latitude: Any, longitude: Any, other_latitude: Any, other_longitude: Any) -> Any:
    """The way between two points on a sphere (haversine)."""
    x1, x2 = math.radians(latitude), math.radians(other_latitude)
    half_y = math.sin((x1 - x2) / 2)
    half_x = math.sin(math.radians(longitude - other_longitude) / 2)
    h = half_y * half_y + half_x * half_x * math.cos(x1) * math.cos(x2)
    return 2 * _RADIUS * math.asin(min(1.0, math.sqrt(h)))


@njit(types.boolean(types.int64, types.float64, types.float64, _F64, types.int64), cache=True,
      nogil=True)  # fmt: skip
def _is_there(op: Any, latitude: Any, longitude: Any, numbers: Any, at: Any) -> Any:
    """Whether a point is near another, or in a box; NaN is nowhere."""
    if op == _DISTANCE:
        return _metres(latitude, longitude, numbers[at], numbers[at + 1]) <= numbers[at + 2]
    top, left, bottom, right = numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]
    if not bottom <= latitude <= top:
        return False
    if left <= right:
        return left <= longitude <= right
    return longitude >= left or longitude <= right


@njit(types.UniTuple(types.float64, 2)(types.int64, types.int64, _I32, _I64, _F64, types.int64,
      types.int64[::1], types.int32[::1], types.int32[::1], types.int32[::1], _I32, _I32_2, _I64, _F64, _F64,
      types.float64[::1], types.float64[::1]), cache=True, nogil=True)  # fmt: skip
def _evaluated(
    at: Any, end: Any, code: Any, bounds: Any, numbers: Any,
    document: Any, stamp: Any, first: Any, count: Any, following: Any, position: Any,
    value_starts: Any, values: Any, latitudes: Any, longitudes: Any,
    fits: Any, scores: Any,
) -> Any:  # fmt: skip
    """A program's score, and 1 if the document matches, otherwise 0."""
    top = 0
    nothing = np.empty(0, np.int64)
    while at < end:
        op = code[at]
        score = 0.0
        fit = 0.0
        if op in (_TERM, _LEAF):
            leaf = code[at + 1]
            if stamp[leaf] == document:
                fit = 1.0
                score = _IDF * count[leaf] / (count[leaf] + _K1) if op == _TERM else 1.0
            at += 2
        elif op == _BOOLEAN:
            must, should, not_ = code[at + 1], code[at + 2], code[at + 3]
            needed = code[at + 4]
            top -= must + should + not_
            fit = 1.0
            for i in range(top, top + must):
                if fits[i] == 0.0:
                    fit = 0.0
                score += scores[i]
            for i in range(top + must, top + must + should):
                if fits[i] != 0.0:
                    needed -= 1
                    score += scores[i]
            for i in range(top + must + should, top + must + should + not_):
                if fits[i] != 0.0:
                    fit = 0.0
            if needed > 0:
                fit = 0.0
            at += 5
        elif op == _PHRASE:
            size = code[at + 1]
            frequency, fit = _phrase(code, at + 4, size, code[at + 2], code[at + 3] & REPEATS, document,
                                     stamp, first, following, position, 0, nothing)  # fmt: skip
            score = size * _IDF * frequency / (frequency + _K1)
            at += 4 + 2 * size
        elif op == _RANGE:
            column = code[at + 1]
            low, high = bounds[code[at + 2]], bounds[code[at + 2] + 1]
            for i in range(value_starts[column, document], value_starts[column, document + 1]):
                if low <= values[i] <= high:
                    fit = score = 1.0
                    break
            at += 3
        elif op in (_DISTANCE, _BOX):
            column = code[at + 1]
            for i in range(value_starts[column, document], value_starts[column, document + 1]):
                if _is_there(op, latitudes[i], longitudes[i], numbers, code[at + 2]):
                    fit = score = 1.0
                    break
            at += 3
        elif op == _ALL:
            fit = score = 1.0
            at += 1
        elif op == _NONE:
            at += 1
        else:  # a boost
            top -= 1
            fit = fits[top]
            score = scores[top] * numbers[code[at + 1]]
            at += 2
        fits[top] = fit
        scores[top] = score
        top += 1
    return scores[0], fits[0]


@njit(types.UniTuple(types.int64, 3)(types.int64, _I32, _I32, _I32, _I32, _I32, _I32, _I64, _I32, _I64,
      _F64, _I32_2, _I64, _F64, _F64, types.int64, types.int64[::1], types.int32[::1],
      types.int32[::1], types.float64[::1]), cache=True, nogil=True)  # fmt: skip
def matched(
    start: Any, tokens: Any, leaf: Any, position: Any,
    list_starts: Any, lists: Any, always: Any,
    programs: Any, code: Any, bounds: Any, numbers: Any,
    value_starts: Any, values: Any, latitudes: Any, longitudes: Any, depth: Any,
    seen: Any, out_document: Any, out_query: Any, out_score: Any,
) -> Any:  # fmt: skip
    """Matches of documents from one on, until the room might not hold the next one's.

    Args:
        start: the first document.
        tokens: where each document's leaves begin in `leaf` and `position`.
        leaf: of each occurrence; those of a document together, in the order of their positions.
        position: of each.
        list_starts: where each leaf's queries begin in `lists`.
        lists: of queries.
        always: queries that are under no leaf.
        programs: where each query's program begins in `code`.
        code: the programs.
        bounds: that they refer to.
        numbers: that they refer to.
        value_starts: of each column and document, where its values begin.
        values: codes of numbers and times.
        latitudes: in the same places.
        longitudes: in the same places.
        depth: of the stack that the deepest program needs.
        seen: int64[leaves], what is added to for each document that has a leaf.
        out_document: of each match.
        out_query: the same.
        out_score: the same.

    Returns:
        How many matches there are, the next document, and how many candidates there were.
    """
    leaves = len(list_starts) - 1
    queries = len(programs) - 1
    stamp = np.full(leaves, -1, np.int64)
    first = np.empty(leaves, np.int32)
    last = np.empty(leaves, np.int32)
    count = np.empty(leaves, np.int32)
    following = np.empty(len(leaf), np.int32)
    asked = np.full(queries, -1, np.int32)
    candidates = np.empty(queries, np.int32)
    fits = np.empty(depth + 1, np.float64)
    scores = np.empty(depth + 1, np.float64)
    n = np.int64(0)
    total = np.int64(0)
    document = start
    while document < len(tokens) - 1:
        if n + queries > len(out_document):
            break
        found = np.int64(0)
        for at in range(tokens[document], tokens[document + 1]):
            one = leaf[at]
            following[at] = -1
            if stamp[one] == document:
                following[last[one]] = at
                last[one] = at
                count[one] += 1
                continue
            stamp[one] = document
            first[one] = last[one] = at
            count[one] = 1
            seen[one] += 1
            for i in range(list_starts[one], list_starts[one + 1]):
                query = lists[i]
                if asked[query] != document:
                    asked[query] = document
                    candidates[found] = query
                    found += 1
        for i in range(found + len(always)):
            query = candidates[i] if i < found else always[i - found]
            score, fit = _evaluated(
                programs[query], programs[query + 1], code, bounds, numbers, document, stamp, first,
                count, following, position, value_starts, values, latitudes, longitudes, fits, scores,
            )  # fmt: skip
            if fit != 0.0:
                out_document[n], out_query[n], out_score[n] = document, query, score
                n += 1
        total += found + len(always)
        document += 1
    return n, document, total


@njit(types.int64(_I32, _I32, _I64, _I32, _I64, _I32, _I32, _I32, _I32, types.int64,
      types.int32[::1], types.int32[::1]), cache=True, nogil=True)  # fmt: skip
def found_words(
    documents: Any, queries: Any, positive_starts: Any, positive: Any, programs: Any, code: Any,
    tokens: Any, leaf: Any, position: Any, leaves: Any, out_match: Any, out_token: Any,
) -> Any:  # fmt: skip
    """Of each match, the occurrences of leaves that the query wanted; their number may exceed the room.

    Args:
        documents: of each match, ascending.
        queries: of each match.
        positive_starts: where each query's leaves begin in `positive`.
        positive: the leaves that it wants anywhere; those in phrases count only there.
        programs: as of `matched`.
        code: the same.
        tokens: the same.
        leaf: the same.
        position: the same.
        leaves: how many there are.
        out_match: of each occurrence its match.
        out_token: and its place in `leaf`.
    """
    wanted = np.full(leaves, -1, np.int64)
    stamp = np.full(leaves, -1, np.int64)
    first = np.empty(leaves, np.int32)
    last = np.empty(leaves, np.int32)
    following = np.empty(len(leaf), np.int32)
    marks = np.full(len(leaf), -1, np.int64)
    document = -1
    n = np.int64(0)
    for i in range(len(documents)):
        if documents[i] != document:
            document = documents[i]
            for at in range(tokens[document], tokens[document + 1]):
                one = leaf[at]
                following[at] = -1
                if stamp[one] == document:
                    following[last[one]] = at
                else:
                    stamp[one] = document
                    first[one] = at
                last[one] = at
        query = queries[i]
        for at in range(positive_starts[query], positive_starts[query + 1]):
            wanted[positive[at]] = i
        at = programs[query]
        while at < programs[query + 1]:
            if code[at] == _PHRASE and code[at + 3] & POSITIVE:
                _phrase(code, at + 4, code[at + 1], code[at + 2], code[at + 3] & REPEATS, document,
                        stamp, first, following, position, i, marks)  # fmt: skip
            at += size_of(code, at)
        for at in range(tokens[document], tokens[document + 1]):
            if wanted[leaf[at]] == i or marks[at] == i:
                if n < len(out_match):
                    out_match[n], out_token[n] = i, at
                n += 1
    return n
