"""Who may ask: names, origins, keys, types of body; and that nothing else is said to the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from running_server import Running, running

from quantcli.errors import UsageError
from quantcli.server.guard import host_name
from quantcli.server.settings import Settings

ROUTES = ("/v1/models", "/metrics", "/v1/chat/completions", "/tokenize", "/nothing")
HELLO = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    settings = {"api_keys": ("first key", "second"), "cors_origins": ("https://ok.example",)}
    with running(settings=settings) as started:
        yield started


@pytest.fixture(scope="module")
def open_server() -> Iterator[Running]:
    with running() as started:
        yield started


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_wants_the_key(server: Running, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "first"}):
        response = server.get(path, headers=headers)
        assert response.status_code == 401
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first key"},
        {"authorization": "bearer second"},
        {"x-api-key": "second"},
    ],
)
def test_any_of_the_keys_opens_it(server: Running, headers: dict[str, str]) -> None:
    assert server.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/v1/health"])
def test_the_page_and_health_need_no_key(server: Running, path: str) -> None:
    assert server.get(path).status_code == 200


def test_without_keys_any_key_will_do(open_server: Running) -> None:
    headers = {"authorization": "Bearer sk-anything"}
    assert open_server.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil.example", "[::1"]
)
def test_a_foreign_name_is_refused(open_server: Running, host: str) -> None:
    response = open_server.get("/health", headers={"host": host})
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8080", "localhost."]
)
def test_its_own_names_are_known(open_server: Running, host: str) -> None:
    assert open_server.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://"]
)
def test_pages_of_other_origins_are_refused(open_server: Running, origin: str) -> None:
    response = open_server.post("/v1/chat/completions", HELLO, headers={"origin": origin})
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
    assert open_server.service.runner.n_open == 0


def test_its_own_page_may_ask(open_server: Running) -> None:
    response = open_server.post("/v1/chat/completions", HELLO, headers={"origin": open_server.url})
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


def test_an_origin_that_was_let_in_gets_exactly_itself(server: Running) -> None:
    headers = {"origin": "https://ok.example", "x-api-key": "second"}
    response = server.get("/v1/models", headers=headers)
    assert response.headers["access-control-allow-origin"] == "https://ok.example"
    assert response.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in response.headers


def test_its_preflight_is_answered_without_a_key(server: Running) -> None:
    with server.client() as client:
        response = client.options("/v1/models", headers={"origin": "https://ok.example"})
        assert response.status_code == 204
        assert "authorization" in response.headers["access-control-allow-headers"]
        assert (
            client.options("/v1/models", headers={"origin": "https://no.example"}).status_code
            == 403
        )


def test_an_error_reaches_a_page_that_was_let_in(server: Running) -> None:
    response = server.get("/v1/models", headers={"origin": "https://ok.example"})
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "https://ok.example"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_a_type_that_pages_send_unasked_is_refused(
    open_server: Running, kind: str
) -> None:
    with open_server.client() as client:
        headers = {"content-type": kind} if kind else {}
        response = client.post("/v1/chat/completions", content=b"{}", headers=headers)
    assert response.status_code == 415


def test_the_cache_is_apart_for_each_of_several_keys(server: Running) -> None:
    from quantcli.server.chat import salt_of

    class Request:
        state = type("State", (), {"key": 2})

    assert salt_of(server.service, Request()) == "key 2"  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "::", "example.com"])
def test_other_machines_are_let_in_only_with_a_key(host: str) -> None:
    with pytest.raises(UsageError, match="there is no API key"):
        Settings(host=host)
    assert Settings(host=host, api_keys=("k",)).host == host
    assert Settings(host=host, is_open=True).host == host


@pytest.mark.parametrize("origin", ["*", "example.com", "https://example.com/"])
def test_an_origin_must_be_one(origin: str) -> None:
    with pytest.raises(UsageError, match="is not an origin"):
        Settings(cors_origins=(origin,))


@pytest.mark.parametrize("key", ["clé", "a\nb", " "])
def test_a_key_must_fit_in_a_header(key: str) -> None:
    with pytest.raises(UsageError, match="printable ASCII"):
        Settings(api_keys=(key,))


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:8080", "localhost"),
        ("[::1]:80", "::1"),
        ("::1", ""),
        ("a.example.", "a.example"),
        ("user@a.example", "a.example"),
        ("[", ""),
    ],
)
def test_the_name_in_a_host_header(host: str, name: str) -> None:
    assert host_name(host) == name
