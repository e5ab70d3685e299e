"""What tools ask of the catalogs on their own, before somebody types a query."""

from __future__ import annotations

import pytest
from tests.serve.committing import clicks, commit

from penstock.serve import Question, Views
from penstock.serve.questions import answer
from penstock.serve.texts.words import substituted

MEMORY = 512 << 20
# The queries of DBeaver's PostgreSQL driver, of pgjdbc and of Grafana's data source, as their sources have
# them. Behind each: how many rows it has of one view with five columns; None: it is only answered.
ASKED: dict[str, int | None] = {
    # DBeaver connects.
    "SELECT current_schema(),session_user": 1,
    "SELECT version()": 1,
    "SELECT db.oid,db.* FROM pg_catalog.pg_database db WHERE datname=$1": 1,
    "SELECT n.oid,n.*,d.description FROM pg_catalog.pg_namespace n LEFT OUTER JOIN "
    "pg_catalog.pg_description d ON d.objoid=n.oid AND d.objsubid=0 AND d.classoid='pg_namespace'::regclass "
    "ORDER BY nspname": 3,
    "SELECT t.oid,t.*,c.relkind,format_type(nullif(t.typbasetype, 0), t.typtypmod) as base_type_name, "
    "d.description FROM pg_catalog.pg_type t LEFT OUTER JOIN pg_catalog.pg_type et ON et.oid=t.typelem "
    "LEFT OUTER JOIN pg_catalog.pg_class c ON c.oid=t.typrelid LEFT OUTER JOIN pg_catalog.pg_description d "
    "ON t.oid=d.objoid WHERE t.typname IS NOT NULL AND (c.relkind IS NULL OR c.relkind = 'c') AND "
    "(et.typcategory IS NULL OR et.typcategory <> 'C')": None,
    "SELECT * FROM pg_catalog.pg_settings": None,
    "SELECT * FROM pg_show_all_settings() WHERE name = 'TimeZone'": 1,
    "SELECT reltype FROM pg_catalog.pg_class WHERE 1<>1 LIMIT 1": 0,
    "SELECT * FROM pg_catalog.pg_enum WHERE 1<>1 LIMIT 1": 0,
    "select string_agg(word, ',') from pg_catalog.pg_get_keywords() where word <> ALL ('{a,abs,at,zone}'"
    "::text[])": 1,
    "SELECT * FROM pg_get_keywords() WHERE catcode = 'R' AND word = 'select'": 1,
    # It opens the tree.
    "SELECT c.oid,c.*,d.description,pg_catalog.pg_get_expr(c.relpartbound, c.oid) as partition_expr, "
    "pg_catalog.pg_get_partkeydef(c.oid) as partition_key FROM pg_catalog.pg_class c LEFT OUTER JOIN "
    "pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0 AND d.classoid='pg_class'::regclass "
    "WHERE c.relnamespace=$2 AND c.relkind not in ('i','I','c')": 1,
    "SELECT c.relname,a.*,pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) as def_value,"
    "dsc.description,dep.objid FROM pg_catalog.pg_attribute a INNER JOIN pg_catalog.pg_class c ON "
    "(a.attrelid=c.oid) LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON (a.attrelid=ad.adrelid AND a.attnum = "
    "ad.adnum) LEFT OUTER JOIN pg_catalog.pg_description dsc ON (c.oid=dsc.objoid AND a.attnum = "
    "dsc.objsubid) LEFT OUTER JOIN pg_depend dep on dep.refobjid = a.attrelid AND dep.deptype = 'i' and "
    "dep.refobjsubid = a.attnum and dep.classid = dep.refclassid WHERE NOT a.attisdropped AND c.oid=$3 "
    "ORDER BY a.attnum": 5,
    "SELECT c.oid,c.*,t.relname as tabrelname,rt.relnamespace as refnamespace,d.description, "
    "pg_catalog.pg_get_constraintdef(c.oid) as definition FROM pg_catalog.pg_constraint c INNER JOIN "
    "pg_catalog.pg_class t ON t.oid=c.conrelid LEFT OUTER JOIN pg_catalog.pg_class rt ON rt.oid=c.confrelid "
    "LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0 AND "
    "d.classoid='pg_constraint'::regclass WHERE c.conrelid=$3 ORDER BY c.oid": 1,
    "SELECT i.*,i.indkey as keys,c.relname,c.relnamespace,c.relam,c.reltablespace,tc.relname as tabrelname,"
    "dsc.description,pg_catalog.pg_get_expr(i.indpred, i.indrelid) as pred_expr,"
    "pg_catalog.pg_get_expr(i.indexprs, i.indrelid, true) as expr,"
    "pg_catalog.pg_relation_size(i.indexrelid) as index_rel_size,"
    "pg_catalog.pg_stat_get_numscans(i.indexrelid) as index_num_scans FROM pg_catalog.pg_index i INNER JOIN "
    "pg_catalog.pg_class c ON c.oid=i.indexrelid INNER JOIN pg_catalog.pg_class tc ON tc.oid=i.indrelid "
    "LEFT OUTER JOIN pg_catalog.pg_description dsc ON i.indexrelid=dsc.objoid WHERE i.indrelid=$3 ORDER BY "
    "tabrelname, c.relname": 1,
    "select c.oid,pg_catalog.pg_total_relation_size(c.oid) as total_rel_size,"
    "pg_catalog.pg_relation_size(c.oid) as rel_size FROM pg_class c WHERE c.relnamespace=$2": None,
    "SELECT a.oid,a.*,pd.description FROM pg_catalog.pg_roles a LEFT JOIN pg_catalog.pg_shdescription pd ON "
    "a.oid = pd.objoid ORDER BY a.rolname": 1,
    "SELECT e.oid,e.*,n.nspname FROM pg_catalog.pg_extension e JOIN pg_namespace n ON n.oid = "
    "e.extnamespace": 0,
    "SELECT x.oid,x.* FROM pg_catalog.pg_event_trigger x": 0,
    "SELECT p.oid as poid,p.*,pg_catalog.pg_get_expr(p.proargdefaults, 0) as arg_defaults,d.description "
    "FROM pg_catalog.pg_proc p LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=p.oid WHERE "
    "p.pronamespace=$2 ORDER BY p.proname": 0,
    "SELECT * FROM pg_stat_user_tables WHERE schemaname = 'public' AND relname = 'per_user'": 1,
    "SELECT relname, n_live_tup, seq_scan FROM pg_catalog.pg_stat_all_tables": 1,
    "SELECT * FROM pg_catalog.pg_stat_activity": 0,
    # It shows a view's rows, with a filter and a number of rows.
    "SELECT x.* FROM public.per_user x": 3,
    'SELECT x.* FROM public.per_user x WHERE n > 6 ORDER BY x."user" DESC': 2,
    "SELECT count(*) FROM penstock.public.per_user": 1,
    # pgjdbc's DatabaseMetaData.
    "SELECT current_database() AS TABLE_CAT, n.nspname AS TABLE_SCHEM, c.relname AS TABLE_NAME, CASE "
    "n.nspname ~ '^pg_' OR n.nspname = 'information_schema' WHEN true THEN 'SYSTEM TABLE' WHEN false THEN "
    "CASE c.relkind WHEN 'r' THEN 'TABLE' ELSE NULL END ELSE NULL END AS TABLE_TYPE, d.description AS "
    "REMARKS FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_description d ON "
    "(c.oid = d.objoid AND d.objsubid = 0 and d.classoid = 'pg_class'::regclass) WHERE c.relnamespace = "
    "n.oid AND c.relkind = 'r' ORDER BY TABLE_TYPE,TABLE_SCHEM,TABLE_NAME": 1,
    "SELECT nspname AS TABLE_SCHEM, current_database() AS TABLE_CATALOG FROM pg_catalog.pg_namespace WHERE "
    "nspname <> 'pg_toast' AND (nspname !~ '^pg_temp_' OR nspname = (pg_catalog.current_schemas(true))[1]) "
    "ORDER BY TABLE_SCHEM": 3,
    # Grafana looks for the version, for an extension, for tables and their columns; then it asks for them.
    "SELECT current_setting('server_version_num')::int/100 as version": 1,
    "SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'": 0,
    'select quote_ident(table_name) as "table" from information_schema.tables where '
    "quote_ident(table_schema) not in ('information_schema', 'pg_catalog', '_timescaledb_cache', "
    "'_timescaledb_catalog', '_timescaledb_internal', '_timescaledb_config', 'timescaledb_information', "
    "'timescaledb_experimental') and quote_ident(table_schema) IN (SELECT CASE WHEN trim(s[i]) = '\"$user\"' "
    "THEN user ELSE trim(s[i]) END FROM generate_series(array_lower(string_to_array(current_setting("
    "'search_path'),','),1), array_upper(string_to_array(current_setting('search_path'),','),1)) as i, "
    "string_to_array(current_setting('search_path'),',') s)": 1,
    'select quote_ident(column_name) as "column", data_type as "type" from information_schema.columns '
    "where quote_ident(table_name) = 'per_user';": 5,
    'SELECT floor(extract(epoch from window_start)/300)*300 AS "time", sum(n) AS n FROM per_user WHERE '
    "window_start BETWEEN '2000-01-01T11:00:00Z' AND '2000-01-01T13:00:00Z' GROUP BY 1 ORDER BY 1": 1,
    "SELECT window_start AS \"time\", to_char(window_start, 'HH24:MI') AS at, n AS \"n\" FROM "
    '"public"."per_user" ORDER BY 1 LIMIT 50': 3,
}  # fmt: skip
PARAMETERS = ("'penstock'", "2200", "16384")


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Views:
    return Views(commit(clicks(), tmp_path_factory.mktemp("shop.penstock")))


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("query", ASKED)
def test_what_tools_ask_is_answered(views: Views, query: str) -> None:
    """DBeaver's, pgjdbc's and Grafana's queries find the view, its columns and its rows, also prepared."""
    head = answer(views, Question(query, 0, dialect="postgres", kind="columns"), MEMORY)
    text = substituted(query, PARAMETERS)
    found = answer(views, Question(text, 10_000, dialect="postgres"), MEMORY).table
    assert head.table.schema.names == found.schema.names
    expected = ASKED[query]
    assert expected is None or found.num_rows == expected
