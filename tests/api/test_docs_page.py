"""GET /docs: a page over the OpenAPI document that needs nothing from another host."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from tokenmill.api import cli, server, stopping
from tokenmill.api.http import docs_page
from tokenmill.api.http.keys.auth import PUBLIC_PATHS
from tokenmill.api.http.static_files import HEADERS
from tokenmill.api.listening import Address
from tokenmill.core.config import EngineConfig

from .serving import Served, serve_engine, toy_engine

STATIC = Path(docs_page.__file__).parent / "static"
VENDORED = STATIC / "swagger-ui"
TYPES = {"js": "text/javascript", "css": "text/css"}
MAX_BYTES = 2_000_000


def linked_files(page: httpx.Response) -> set[str]:
    """The paths of scripts and styles, as a browser resolves them against the page's address."""
    links = re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]+)"', page.text)
    found = [urljoin(str(page.url), link) for link in links if not link.startswith("data:")]
    return {httpx.URL(url).path for url in found}


def test_the_page_and_its_files_come_from_this_server_alone(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "//" not in re.sub(r"<!--.*?-->|</", "", page.text), "an address of another host"
    files = linked_files(page)
    assert files | {"/docs"} == {path for path in PUBLIC_PATHS if path.startswith("/docs")}
    answers = [page, *map(http.get, sorted(files))]
    for answer in answers:
        assert answer.status_code == 200
        assert HEADERS.items() <= {k.title(): v for k, v in answer.headers.items()}.items()
    for answer in answers[1:]:
        expected = TYPES[answer.url.path.rpartition(".")[2]]
        assert answer.headers["content-type"].startswith(expected)
        again = http.get(answer.url.path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert sum(len(answer.content) for answer in answers) < MAX_BYTES


def test_the_policy_lets_the_page_fetch_only_from_its_own_server() -> None:
    directives = dict(
        part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";")
    )
    assert directives["default-src"] == "'none'"
    allowed = {source for text in directives.values() for source in text.split()}
    assert allowed == {"'none'", "'self'", "'unsafe-inline'", "data:"}
    assert directives["script-src"] == directives["connect-src"] == "'self'"


@pytest.mark.parametrize(
    "path", ["/docs/", "/docs/nothing.js", "/docs/swagger-ui", "/docs/%2e%2e/route.py"]
)
def test_other_paths_below_the_page_do_not_exist(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 404


def test_swagger_ui_is_the_one_that_its_licence_and_checksums_are_for() -> None:
    about = (VENDORED / "README.md").read_text()
    sums = dict(re.findall(r"`([\w.-]+)` \| ([0-9a-f]{64})", about))
    assert set(sums) == {"swagger-ui-bundle.js", "swagger-ui.css"}
    for name, expected in sums.items():
        assert hashlib.sha256((VENDORED / name).read_bytes()).hexdigest() == expected, name
    (version,) = re.findall(r"# Swagger UI ([\d.]+)", about)
    root = Path(__file__).parents[2]
    assert f"Swagger UI {version}" in (root / "NOTICE").read_text()
    assert "Apache License" in (VENDORED / "LICENSE").read_text()


def test_with_keys_the_page_is_public_and_the_document_is_not() -> None:
    settings = {"api_keys": ("k",), "root_path": "/llm"}
    with serve_engine(toy_engine(), **settings) as served, served.client() as http:
        for prefix in ("", "/llm"):
            page = http.get(f"{prefix}/docs")
            files = linked_files(page)
            assert len(files) == 3
            assert {http.get(path).status_code for path in files} == {page.status_code} == {200}
            document = urljoin(str(page.url), "openapi.json")
            assert http.get(document).status_code == 401
            assert http.get(document, headers={"x-api-key": "k"}).status_code == 200
            assert http.get(f"{prefix}/docs/swagger-ui/LICENSE").status_code == 401


def test_a_unix_socket_serves_the_page(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serve_engine(toy_engine(), address=Address(uds=path)):
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(base_url="http://localhost", transport=transport, timeout=60) as http:
            files = linked_files(http.get("/docs"))
            assert [http.get(file).status_code for file in files] == [200] * 3


def test_a_server_without_the_page_has_nothing_at_its_paths() -> None:
    with serve_engine(toy_engine(), ui=False) as served, served.client() as http:
        assert {http.get(path).status_code for path in PUBLIC_PATHS if "docs" in path} == {404}
        assert "/docs" not in http.get("/").text
        assert http.get("/openapi.json").status_code == 200


@pytest.mark.parametrize(("flags", "has_page"), [([], True), (["--no-ui"], False)])
def test_a_flag_removes_the_page(
    flags: list[str], has_page: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    async def note(config: EngineConfig, options: server.ServeOptions, *rest: object) -> None:
        found.append(options.settings.ui)

    monkeypatch.setattr(server, "serve", note)
    monkeypatch.setattr(server, "configure_logging", lambda *_, **__: None)
    monkeypatch.setattr(stopping, "leave_if_hung", lambda: None)
    (tmp_path / "file.yaml").write_text(f"ui: {str(has_page).lower()}\n")
    for given in (flags, ["--config", str(tmp_path / "file.yaml")]):
        cli.main(["serve", "--no-engine-process", *given])
    assert found == [has_page] * 2


@pytest.mark.parametrize("is_strict", [False, True])
def test_the_document_s_examples_are_answered(is_strict: bool) -> None:
    with serve_engine(toy_engine(), strict_fields=is_strict) as served:
        assert ask_examples(served) == 8


def ask_examples(served: Served) -> int:
    """Send the example of each path; return their number."""
    count = 0
    with served.client() as http:
        assert "/docs" in http.get("/").text
        for path, operations in http.get("/openapi.json").json()["paths"].items():
            assert "/docs" not in path
            if "requestBody" in operations.get("post", {}):
                body = operations["post"]["requestBody"]["content"]["application/json"]
                answer = http.post(path, json=body["example"])
                assert answer.status_code == 200, (path, answer.text)
                count += 1
    return count
