"""What sinks use of Elasticsearch's protocol, as its reference documents it: bulk with external versions,
documents that are replaced if nobody else has, indices and their aliases.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson


class Elastic:
    """Indices in memory; `failures` answer the next requests, `document_failures` all documents of a bulk."""

    def __init__(self) -> None:
        self.mappings: dict[str, Any] = {}
        self.aliases: dict[str, str] = {}
        self.documents: dict[str, dict[str, dict[str, Any]]] = {}
        self.versions: dict[tuple[str, str], int] = {}
        self.failures: list[int] = []
        self.document_failures: list[int] = []
        self.url = ""
        self._numbers = itertools.count()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if self.failures:
            return self.failures.pop(0), {"error": "it is busy"}
        parts = urlsplit(path)
        index, *rest = [unquote(one) for one in parts.path.strip("/").split("/")]
        match index, rest:
            case "_aliases", []:
                return self._change_aliases(orjson.loads(body)["actions"])
            case "_alias", [name]:
                there = name in self.aliases
                return (200, {self.aliases[name]: {}}) if there else (404, {})
            case _, ["_bulk"]:
                return 200, self._bulk(index, iter(body.splitlines()))
            case _, ["_mget"]:
                return 200, {
                    "docs": [self._found(index, one) for one in orjson.loads(body)["docs"]]
                }
            case _, ["_refresh"]:
                return 200, {}
            case _, ["_doc", id_]:
                return self._document(method, index, id_, parse_qs(parts.query), body)
        if method == "PUT":
            definition = orjson.loads(body)
            if index in self.mappings:
                return 400, {"error": "resource_already_exists_exception"}
            self.mappings[index] = definition["mappings"]
            self.aliases |= dict.fromkeys(definition.get("aliases", {}), index)
        if index.endswith("*"):
            return 200, {one: {} for one in self.mappings if one.startswith(index[:-1])}
        there = index in self.mappings or index in self.aliases
        return (200, {}) if there else (404, {})

    def rows(self, name: str) -> dict[str, Any]:
        """The documents of an index, or of the one with an alias, by their ids."""
        found = self.documents.get(self.aliases.get(name, name), {})
        return {id_: one["_source"] for id_, one in found.items()}

    def _change_aliases(self, actions: list[dict[str, Any]]) -> tuple[int, Any]:
        for action in actions:
            [(what, fields)] = action.items()
            index, alias = fields["index"], fields.get("alias")
            if what == "add":
                self.aliases[alias] = index
            elif what == "remove":
                assert self.aliases.pop(alias) == index
            else:
                del self.mappings[index]
                self.documents.pop(index, None)
                self.versions = {one: v for one, v in self.versions.items() if one[0] != index}
                self.aliases = {a: i for a, i in self.aliases.items() if i != index}
        return 200, {}

    def _document(
        self, method: str, index: str, id_: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[int, Any]:
        found = self.documents.setdefault(index, {}).get(id_)
        if method == "GET":
            return (404, {"found": False}) if found is None else (200, found)
        if method == "DELETE":
            self.documents[index].pop(id_, None)
            return 200, {}
        if "op_type" in query:
            fits = found is None
        else:
            fits = found is not None and str(found["_seq_no"]) == query["if_seq_no"][0]
        if not fits:
            return 409, {"error": "version_conflict_engine_exception"}
        made = {
            "_source": orjson.loads(body),
            "_seq_no": next(self._numbers),
            "_primary_term": 1,
        }
        self.documents[index][id_] = made
        return 200, made

    def _found(self, index: str, asked: dict[str, Any]) -> dict[str, Any]:
        found = self.documents.get(index, {}).get(asked["_id"])
        if found is None:
            return {"_id": asked["_id"], "found": False}
        row = {name: value for name, value in found["_source"].items() if name in asked["_source"]}
        return {"_id": asked["_id"], "found": True, "_source": row}

    def _bulk(self, index: str, lines: Iterator[bytes]) -> Any:
        items = []
        failure = self.document_failures.pop(0) if self.document_failures else 0
        for line in lines:
            [(op, metadata)] = orjson.loads(line).items()
            row = orjson.loads(next(lines)) if op == "index" else None
            place = index, metadata["_id"]
            if failure:
                status = failure
            elif metadata["version"] < self.versions.get(place, -1):
                status = 409
            elif row is not None and row.get("name") == "bad":
                status = 400
            else:
                self.versions[place] = metadata["version"]
                status = 200
                if row is None:
                    self.documents.setdefault(index, {}).pop(metadata["_id"], None)
                else:
                    self.documents.setdefault(index, {})[metadata["_id"]] = {"_source": row}
            items.append({op: {"status": status, "error": {"type": "mapper_parsing_exception"}}})
        errors = any(one["status"] >= 400 for item in items for one in item.values())
        return {"errors": errors, "items": items}


@contextmanager
def elastic_server() -> Iterator[Elastic]:
    """A server, for a while."""
    elastic = Elastic()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, answer = elastic.answer(self.command, self.path, body)
            text = orjson.dumps(answer)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self._any()

        def do_PUT(self) -> None:
            self._any()

        def do_POST(self) -> None:
            self._any()

        def do_DELETE(self) -> None:
            self._any()

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as address:
        elastic.url = address
        yield elastic


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server of this handler."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
