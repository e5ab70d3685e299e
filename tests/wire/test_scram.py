from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.scram import (
    ITERATIONS_MIN,
    MECHANISMS,
    ClientExchange,
    Credential,
    ScramError,
    ServerExchange,
    plain_message,
    read_plain,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20
)


def log_in(
    mechanism: str, user: str, password: str, credential: Credential
) -> tuple[ServerExchange, ClientExchange]:
    """Runs one exchange to its end."""
    server = ServerExchange(mechanism, lambda _: credential, "server")
    client = ClientExchange(mechanism, user, password, "client")
    client.verify(server.step(client.final(server.step(client.first()))))
    return server, client


def test_rfc_7677_example() -> None:
    """Both sides give the bytes of RFC 7677's example."""
    credential = Credential.from_password("SCRAM-SHA-256", "pencil", SALT, 4096)
    server = ServerExchange("SCRAM-SHA-256", lambda _: credential, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    client = ClientExchange("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server.step(client.first())
    nonce = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert challenge == nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = client.final(challenge)
    assert proof == b"c=biws," + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    verifier = server.step(proof)
    assert verifier == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.verify(verifier)
    assert server.is_done
    assert server.user == "user"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@settings(max_examples=25, deadline=None)
@given(user=NAMES, password=NAMES)
def test_any_name_and_password(mechanism: str, user: str, password: str) -> None:
    """Names and passwords of any characters survive the exchange; another password does not."""
    credential = Credential.from_password(mechanism, password, b"salt", ITERATIONS_MIN)
    server, _ = log_in(mechanism, user, password, credential)
    assert server.user == user
    assert credential.fits(password)
    with pytest.raises(ScramError, match="proof"):
        log_in(mechanism, user, password + "x", credential)


def test_client_refuses_an_impostor() -> None:
    """A server that does not know the credential, or asks for few rounds, is not believed."""
    right = Credential.from_password("SCRAM-SHA-256", "pencil", SALT)
    server = ServerExchange("SCRAM-SHA-256", lambda _: right, "s")
    client = ClientExchange("SCRAM-SHA-256", "u", "pencil", "c")
    server.step(client.final(server.step(client.first())))
    with pytest.raises(ScramError, match="prove"):
        client.verify(b"v=" + base64.b64encode(bytes(32)))
    for challenge in (b"r=other,s=AAAA,i=4096", b"r=cs,s=AAAA,i=1", b"r=c,s=AAAA,i=4096", b"\xff"):
        with pytest.raises(ScramError):
            ClientExchange("SCRAM-SHA-256", "u", "pencil", "c").final(challenge)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xfe",
        b"p=tls-unique,,n=u,r=c",
        b"n,a=other,n=u,r=c",
        b"n,,m=ext,n=u,r=c",
        b"n,,n=u=zz,r=c",
        b"n,,n=u,r=c,tokenauth=true",
        b"n,,n=" + b"u" * 2000 + b",r=c",
    ],
)
def test_server_refuses_first_messages(message: bytes) -> None:
    """Channel binding, extensions, other identities and nonsense are refused."""
    credential = Credential.from_password("SCRAM-SHA-256", "p", SALT)
    with pytest.raises(ScramError):
        ServerExchange("SCRAM-SHA-256", lambda _: credential, "s").step(message)


def test_server_refuses_changed_final_messages() -> None:
    """A proof is good for its own exchange alone."""
    credential = Credential.from_password("SCRAM-SHA-256", "p", SALT)
    client = ClientExchange("SCRAM-SHA-256", "u", "p", "c")
    first = ServerExchange("SCRAM-SHA-256", lambda _: credential, "s1")
    proof = client.final(first.step(client.first()))
    for changed in (
        proof.replace(b"r=cs1", b"r=cs2"),
        proof.replace(b"c=biws", b"c=eSws"),
        proof[:-8] + b"AAAAAAA=",
        re.sub(rb",p=.*", b",p=AAAA", proof),
        b"nonsense",
    ):
        server = ServerExchange("SCRAM-SHA-256", lambda _: credential, "s1")
        server.step(client.first())
        with pytest.raises(ScramError):
            server.step(changed)


def test_secrets_are_in_no_repr() -> None:
    """A credential that is printed shows neither keys nor salt."""
    credential = Credential.from_password("SCRAM-SHA-512", "p", b"pepper")
    assert "pepper" not in repr(credential)
    assert "key" not in repr(credential)


def test_plain() -> None:
    """PLAIN's message round-trips; one that asks for another identity is refused."""
    assert read_plain(plain_message("ann", "a b")) == ("ann", "a b")
    for message in (b"x\0ann\0p", b"ann\0p", b"\0\0p", b"\0ann\0", b"\xff\0a\0b"):
        with pytest.raises(ScramError):
            read_plain(message)
