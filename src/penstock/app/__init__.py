"""`App`: a pipeline that can run, with its embedded broker."""

from penstock.app._app import App
from penstock.app.embedded import EmbeddedBroker, address_of
from penstock.app.facts import Facts, Found, read_facts
from penstock.app.nodes import read_graph

__all__ = ["App", "EmbeddedBroker", "Facts", "Found", "address_of", "read_facts", "read_graph"]
