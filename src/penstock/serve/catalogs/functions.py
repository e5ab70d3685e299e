"""Functions of PostgreSQL's as DuckDB's macros, over the tables of `penstock.serve.catalogs.catalog`."""

from __future__ import annotations

import re
from typing import Final

from penstock.serve.catalogs.presets import SERVER_VERSION, current_setting

__all__ = ["CALLABLE", "CALLS", "DEFINITIONS", "MACROS", "server_version"]


def server_version() -> str:
    """What `SELECT version()` answers."""
    return f"PostgreSQL {SERVER_VERSION} (Penstock)"


MACROS: Final = {
    "version()": f"'{server_version()}'",
    "current_database()": "'penstock'",
    "current_catalog()": "'penstock'",
    "current_schema()": "'public'",
    "current_user()": "'penstock'",
    "session_user()": "'penstock'",
    "current_schemas(x)": "CASE WHEN x THEN ['pg_catalog', 'public'] ELSE ['public'] END",
    "current_setting(x, y := FALSE)": current_setting(),
    "set_config(x, y, z)": "y",
    "format_type(t, m)": (
        "CASE WHEN t = 1700 AND m > 4 THEN 'numeric(' || ((m - 4) // 65536) || ',' || "
        "((m - 4) % 65536) || ')' ELSE (SELECT any_value(format_name) FROM pgc.type_names "
        "WHERE type_oid = t) END"
    ),
    "regclass_oid(x)": (
        "coalesce(TRY_CAST(CAST(x AS VARCHAR) AS BIGINT), (SELECT any_value(oid) FROM pgc.pg_class "
        "WHERE relname = replace(regexp_replace(CAST(x AS VARCHAR), '^(public|pg_catalog)\\.', ''), "
        "'\"', '')))"
    ),
    "regclass_name(x)": (
        "coalesce((SELECT any_value(relname) FROM pgc.pg_class WHERE "
        "oid = TRY_CAST(CAST(x AS VARCHAR) AS BIGINT)), CAST(x AS VARCHAR))"
    ),
    "regtype_oid(x)": (
        "coalesce(TRY_CAST(CAST(x AS VARCHAR) AS BIGINT), (SELECT any_value(type_oid) FROM "
        "pgc.type_names WHERE type_name = lower(CAST(x AS VARCHAR)) OR format_name = lower(CAST(x "
        "AS VARCHAR))))"
    ),
    "regtype_name(x)": (
        "coalesce((SELECT any_value(format_name) FROM pgc.type_names WHERE "
        "type_oid = TRY_CAST(CAST(x AS VARCHAR) AS BIGINT)), CAST(x AS VARCHAR))"
    ),
    "to_regclass(x)": (
        "(SELECT any_value(oid) FROM pgc.pg_class WHERE relname = replace(regexp_replace("
        "CAST(x AS VARCHAR), '^(public|pg_catalog)\\.', ''), '\"', ''))"
    ),
    "to_regtype(x)": (
        "(SELECT any_value(type_oid) FROM pgc.type_names WHERE type_name = lower(x) OR "
        "format_name = lower(x))"
    ),
    "pg_get_userbyid(x)": "'penstock'",
    "pg_encoding_to_char(x)": "'UTF8'",
    "pg_backend_pid()": "0",
    "pg_is_in_recovery()": "FALSE",
    "pg_my_temp_schema()": "0",
    "pg_postmaster_start_time()": "CAST('2026-01-01 00:00:00+00' AS TIMESTAMPTZ)",
    "pg_size_pretty(x)": "CAST(x AS VARCHAR) || ' bytes'",
    "quote_ident(x)": (
        "CASE WHEN regexp_full_match(x, '[a-z_][a-z0-9_$]*') THEN x ELSE '\"' || "
        "replace(x, '\"', '\"\"') || '\"' END"
    ),
    "_pg_expandarray(a)": "unnest([{'x': v, 'n': i} for v, i in a])",
    "array_lower(x, d)": "CASE WHEN len(x) > 0 THEN 1 END",
    "array_upper(x, d)": "CASE WHEN len(x) > 0 THEN len(x) END",
    "txid_current()": "0",
    "age(x)": "0",
}
"""Functions of PostgreSQL's that DuckDB lacks or answers for itself."""
_NULLS: Final = {
    "pg_get_expr": 3, "pg_get_indexdef": 3, "pg_get_constraintdef": 2, "pg_get_viewdef": 2,
    "pg_get_partkeydef": 1, "pg_get_functiondef": 1, "pg_get_triggerdef": 2, "pg_get_ruledef": 2,
    "pg_get_statisticsobjdef_columns": 1, "obj_description": 2, "col_description": 2,
    "shobj_description": 2, "pg_tablespace_location": 1, "inet_server_addr": 0, "inet_client_addr": 0,
    "pg_get_serial_sequence": 2, "pg_get_function_arguments": 1, "pg_get_function_result": 1,
    "pg_get_function_identity_arguments": 1, "pg_get_partition_constraintdef": 1,
    "pg_options_to_table": 1, "pg_sequence_last_value": 1, "pg_conf_load_time": 0,
}  # fmt: skip
_ZEROS: Final = {
    "pg_relation_size": 2, "pg_total_relation_size": 1, "pg_table_size": 1, "pg_indexes_size": 1,
    "pg_database_size": 1,
}  # fmt: skip
_TRUES: Final = {
    "pg_table_is_visible": 1, "pg_type_is_visible": 1, "pg_function_is_visible": 1,
    "pg_statistics_obj_is_visible": 1, "pg_opclass_is_visible": 1, "pg_collation_is_visible": 1,
    "has_table_privilege": 3, "has_schema_privilege": 3, "has_database_privilege": 3,
    "has_any_column_privilege": 3, "has_column_privilege": 4, "has_function_privilege": 3,
    "pg_relation_is_publishable": 1, "pg_has_role": 3, "row_security_active": 1, "has_sequence_privilege": 3,
}  # fmt: skip


def _macros() -> dict[str, str]:
    """By name: the macros' DDL, with as many arguments as anyone gives."""
    found = {text.partition("(")[0]: f"{text} AS {body}" for text, body in MACROS.items()}
    for fixed, names in (("NULL", _NULLS), ("0", _ZEROS), ("TRUE", _TRUES)):
        for name, count in names.items():
            value = "CAST(NULL AS VARCHAR)" if fixed == "NULL" else fixed
            arguments = ", ".join(f"a{i} := NULL" for i in range(count))
            found[name] = f"{name}({arguments}) AS {value}"
    return found


CALLABLE: Final = _macros()
DEFINITIONS: Final = frozenset({"pg_get_constraintdef", "pg_get_indexdef"})
_OWN_MEANING: Final = "age"  # DuckDB has it, of times: it says nothing about catalogs
CALLS: Final = re.compile(
    rf"\b({'|'.join(re.escape(one) for one in CALLABLE if one != _OWN_MEANING)})\s*\(",
    re.IGNORECASE,
)
