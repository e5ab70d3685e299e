"""The broker's side of TLS: certificate and key, read again when asked to, and client certificates.

A changed certificate counts for new connections; those that are open continue with the old one.
"""

from __future__ import annotations

import logging
import ssl
import stat

from penstock.broker.listeners import TlsFiles
from penstock.broker.security.model import ANONYMOUS
from penstock.broker.security.names import subject_of
from penstock.errors import SetupError

__all__ = ["Tls", "no_password", "principal_of"]

_log = logging.getLogger(__name__)


class Tls:
    """What new connections are secured with."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.plain = _context(files, mutual=False)
        self.mutual = _context(files, mutual=True) if files.client_ca else self.plain

    def reload(self) -> None:
        """Reads the files again; where they don't fit, the old ones stay in use, with a warning."""
        try:
            plain = _context(self._files, mutual=False)
            mutual = _context(self._files, mutual=True) if self._files.client_ca else plain
        except SetupError as error:
            _log.warning("keeping the certificate that is in use: %s", error)
            return
        self.plain, self.mutual = plain, mutual
        _log.info("reading certificates again: new connections use them")


def _context(files: TlsFiles, *, mutual: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    key = files.key or files.certificate
    try:
        if stat.S_IMODE(key.stat().st_mode) & (stat.S_IRWXO | stat.S_IWGRP):
            _log.warning("the private key %s can be read by every user: chmod 600 it", key)
        context.load_cert_chain(files.certificate, files.key, password=no_password)
        if mutual:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise SetupError(
            f"expected a certificate and its unencrypted private key in PEM in "
            f"{str(files.certificate)!r} and {str(key)!r}"
            + (f", and certificates in {str(files.client_ca)!r}" if mutual else "")
            + f"; found: {error}"
        ) from None
    return context


def no_password() -> str:
    """Refuses an encrypted key, for which OpenSSL would ask the terminal, and wait."""
    raise ValueError("the key is encrypted")


def principal_of(connection: ssl.SSLObject) -> str:
    """`User:CN=…` for who has shown a certificate, else the anonymous principal."""
    certificate = connection.getpeercert(binary_form=True)
    return f"User:{subject_of(certificate)}" if certificate else ANONYMOUS
