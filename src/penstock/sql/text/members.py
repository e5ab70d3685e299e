"""Members of JSON as PostgreSQL names them, in DuckDB's words.

p -> 'a'                       ->  p -> '$.a'         as sqlglot has it
p -> '*', p -> 'a"b'           ->  p -> '/*', '/a"b'  a key of any characters; DuckDB has paths with wildcards
p -> 2, p -> -1                ->  the same           an element of an array; from the end, if it is negative
p -> k                         ->  p -> CASE …        by the type of k, a key of an object or an element
json_extract_path(p, 'a', '0') ->  p -> '/a/0'        keys, and elements by numbers as text
p #> '{a,0}'                   ->  p -> '/a/0'

A pointer (`/a`) reads digits as the number of an element, too, and `$."0"` as a key alone. A key that a row
has may look like a path to DuckDB, and is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sqlglot import exp, parse_one

from penstock.errors import SchemaError

__all__ = ["PATHS", "with_members"]

_ARROWS: Final = (exp.JSONExtract, exp.JSONExtractScalar, exp.JSONBExtract, exp.JSONBExtractScalar)
PATHS: Final[Mapping[str, type[exp.Expr]]] = {
    "JSON_EXTRACT_PATH": exp.JSONExtract,
    "JSONB_EXTRACT_PATH": exp.JSONExtract,
    "JSON_EXTRACT_PATH_TEXT": exp.JSONExtractScalar,
    "JSONB_EXTRACT_PATH_TEXT": exp.JSONExtractScalar,
}
"""Functions of paths, to which sqlglot must give no meaning: to it, the key '01' is the number 1."""
_NUMBER: Final = re.compile(r"\s*[+-]?\d+\s*")
_ITEM: Final = re.compile(
    r'\s*(?:"((?:[^"\\]|\\.)*)"|([^,{}"\\\s](?:[^,{}"\\]*[^,{}"\\\s])?))\s*(,|$)'
)
_POINTER: Final = "'/' || replace(replace(CAST(k AS TEXT), '~', '~0'), '/', '~1')"
_KEY: Final = (
    "CASE WHEN typeof(k) <> 'VARCHAR' THEN '$[' || CAST(k AS TEXT) || ']' "
    "WHEN regexp_full_match(CAST(k AS TEXT), '[0-9]+') THEN '$.\"' || CAST(k AS TEXT) || '\"' "
    f"ELSE {_POINTER} END"
)
"""What follows an arrow, of any type: the path of a key, or of an element."""
_STEP: Final = (
    "CASE WHEN json_type(p) = 'ARRAY' AND regexp_full_match(CAST(k AS TEXT), '\\s*[+-]?[0-9]+\\s*') "
    f"THEN '$[' || CAST(CAST(k AS TEXT) AS BIGINT) || ']' ELSE {_POINTER} END"
)
"""A step of a path, as text: of an array an element's number, else a key."""


def with_members(tree: exp.Expr) -> exp.Expr:
    """A statement of PostgreSQL's dialect whose members of JSON are DuckDB's.

    Raises:
        SchemaError: a path after `#>` isn't written out.
    """
    found = [node for node in tree.find_all(*_ARROWS, exp.Anonymous) if _names_members(node)]
    for node in reversed(found):  # inner ones first
        made = _member(node)
        if made is not None:
            node.replace(made)
    return tree


def _names_members(node: exp.Expr) -> bool:
    return not isinstance(node, exp.Anonymous) or node.name.upper() in PATHS


def _member(node: exp.Expr) -> exp.Expr | None:
    """What a node is in DuckDB; None: the same."""
    if isinstance(node, exp.Anonymous):
        return _along(PATHS[node.name.upper()], node.expressions[0], node.expressions[1:])
    if isinstance(node, exp.JSONBExtract | exp.JSONBExtractScalar):
        kind = exp.JSONExtract if isinstance(node, exp.JSONBExtract) else exp.JSONExtractScalar
        return _along(kind, node.this, list(_steps(node)))
    path: exp.Expr = node.expression
    if isinstance(path, exp.JSONPath) and node.args.get("only_json_types"):
        key = str(path.expressions[1].this)
        return _arrow(type(node), node.this, _pointer([key])) if _is_odd(key) else None
    is_call = node.meta_get("start") is not None  # json_extract(p, '$.a'); an arrow has no name
    if is_call or isinstance(path, exp.JSONPath | exp.Neg | exp.Null):
        return None
    return _arrow(type(node), node.this, _made(_KEY, k=path))


def _along(kind: type[exp.Expr], of: exp.Expr, steps: Sequence[exp.Expr]) -> exp.Expr:
    """What a path leads to: numbers are elements of arrays, and keys of objects."""
    if not steps:
        return _arrow(kind, of, exp.Literal.string("$"))
    at, plain = of, []
    for step in steps:
        text = step.name if isinstance(step, exp.Literal) else None
        if text is not None and (not _NUMBER.fullmatch(text) or str(int(text)) == text.lstrip("-")):
            plain.append(text)
            continue
        if plain:
            at, plain = _arrow(exp.JSONExtract, at, _pointer(plain)), []
        at = _arrow(exp.JSONExtract, at, _made(_STEP, p=at, k=step))
    if plain:
        return _arrow(kind, at, _pointer(plain))
    return at if kind is exp.JSONExtract else _arrow(kind, at, exp.Literal.string("$"))


def _steps(node: exp.Expr) -> Iterator[exp.Expr]:
    """The steps of a path that is written out, as text or as an array."""
    path = node.expression.unnest()
    if isinstance(path, exp.Cast):
        path = path.this
    if isinstance(path, exp.Array):
        yield from path.expressions
        return
    text = path.name.strip() if isinstance(path, exp.Literal) and path.is_string else ""
    if re.fullmatch(r"\{.*\}", text, re.DOTALL) is None:
        raise _refusal(
            node,
            "expected a path that is written out, such as p #> '{a,0}' or p #> ARRAY['a', k]; found "
            f"{path.sql(dialect='duckdb')!r}",
        )
    at, inside = 0, text[1:-1].strip()
    while at < len(inside):
        item = _ITEM.match(inside, at)
        if item is None:
            raise _refusal(node, f"expected keys and numbers, as in '{{a,0}}'; found {text!r}")
        quoted, bare, _ = item.groups()
        yield exp.Literal.string(bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        at = item.end()


def _refusal(node: exp.Expr, message: str) -> SchemaError:
    """An error at the first name of a part of the query."""
    failure = SchemaError(message)
    starts = (one.meta_get("start") for one in node.walk())
    failure.at = min((at for at in starts if at is not None), default=None)
    return failure


def _is_odd(key: str) -> bool:
    """Whether DuckDB has no path with `$` of a key."""
    return key in ("", "*") or "\\" in key or '"' in key


def _pointer(keys: Sequence[str]) -> exp.Expr:
    escaped = (key.replace("~", "~0").replace("/", "~1") for key in keys)
    return exp.Literal.string("".join(f"/{key}" for key in escaped))


def _arrow(kind: type[exp.Expr], of: exp.Expr, path: exp.Expr) -> exp.Expr:
    return kind(this=of.copy(), expression=path, only_json_types=True)


def _made(text: str, **parts: exp.Expr) -> exp.Expr:
    """An expression with others in place of its columns."""

    def filled(node: exp.Expr) -> exp.Expr:
        return exp.paren(parts[node.name].copy()) if isinstance(node, exp.Column) else node

    return exp.paren(parse_one(text, dialect="duckdb").transform(filled), copy=False)
