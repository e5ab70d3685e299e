"""`App`: a pipeline that can run, with its embedded broker."""

from penstock.app._app import App
from penstock.app.embedded import EmbeddedBroker, address_of

__all__ = ["App", "EmbeddedBroker", "address_of"]
