"""The sessions below GCS and Azure: a head is whole or no answer, and the environment is read once."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest
import requests

from pyspark_checkpoint.store.http_session import close_session, mount_adapters, settle_environment

ANSWER = b'HTTP/1.1 200 OK\r\nETag: "0x1C2F"\r\nContent-Length: 5\r\n\r\nhello'


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that gives each connection the same bytes and ends it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                with accepted:
                    accepted.recv(65_536)
                    accepted.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def session() -> Iterator[requests.Session]:
    made = requests.Session()
    mount_adapters(made)
    yield made
    close_session(made)


@pytest.mark.server
def test_an_answer_that_ends_at_any_byte_is_an_error(session: requests.Session) -> None:
    """Cut in the status, in a header's name, in its value, before the empty line, or in the body."""
    for length in range(len(ANSWER)):
        with answering(ANSWER[:length]) as url, pytest.raises(requests.RequestException):
            session.get(url, timeout=5)


@pytest.mark.server
def test_a_whole_answer_is_read(session: requests.Session) -> None:
    """The same bytes uncut: every header and the body."""
    with answering(ANSWER) as url:
        response = session.get(url, timeout=5)
    assert (response.headers["ETag"], response.content) == ('"0x1C2F"', b"hello")


@pytest.mark.server
def test_an_interim_answer_is_passed_over(session: requests.Session) -> None:
    """100 Continue has a head of its own, which is not the answer's."""
    with answering(b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER) as url:
        assert session.get(url, timeout=5).content == b"hello"
    with answering(b"HTTP/1.1 100 Continue\r\n") as url, pytest.raises(requests.RequestException):
        session.get(url, timeout=5)


@pytest.mark.server
def test_a_proxy_is_no_way_around(session: requests.Session) -> None:
    """The head must be whole through a proxy as well."""
    for length, whole in ((len(ANSWER), True), (30, False)):
        with answering(ANSWER[:length]) as proxy:
            session.proxies = {"http": proxy}
            if whole:
                assert session.get("http://storage.invalid/", timeout=5).content == b"hello"
            else:
                with pytest.raises(requests.RequestException):
                    session.get("http://storage.invalid/", timeout=5)


def test_the_environment_is_read_once(session: requests.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxy and certificates of the environment hold for the session, but not where NO_PROXY says so."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    monkeypatch.setenv("NO_PROXY", "inside.invalid")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/ca.pem")
    assert settle_environment(session, "https://storage.invalid/") == "/ca.pem"
    assert session.proxies == {"https": "http://proxy.invalid:3128", "no": "inside.invalid"}
    assert session.trust_env is False
    other = requests.Session()
    settle_environment(other, "https://inside.invalid/")
    assert "https" not in other.proxies
    other.close()
