"""A server with the few routes of the Hugging Face Hub that a download uses."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves the files of one repository, and records the paths that were asked for."""

    daemon_threads = True

    def __init__(self, repo: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo = repo
        self.files = dict(files)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def fetched(self) -> list[str]:
        """The files whose contents were sent."""
        return [asked.removeprefix("GET ") for asked in self.asked if asked.startswith("GET ")]


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *args: object) -> None:
        """Stay silent."""

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        repo = self.server.repo
        revisions = [f"api/models/{repo}/revision/{one}" for one in ("main", COMMIT)]
        if path in (f"api/models/{repo}", *revisions):
            self._send(200, json.dumps(self._info()).encode(), {}, with_body)
            return
        for revision in ("main", COMMIT):
            name = path.removeprefix(f"{repo}/resolve/{revision}/")
            if name != path and name in self.server.files:
                self.server.asked.append(f"{'GET' if with_body else 'HEAD'} {name}")
                content = self.server.files[name]
                etag = hashlib.sha256(content).hexdigest()
                headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
                self._send(200, content, headers, with_body)
                return
        self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)

    def _info(self) -> dict[str, object]:
        files = [{"rfilename": name, "size": len(c)} for name, c in self.server.files.items()]
        return {"id": self.server.repo, "modelId": self.server.repo, "sha": COMMIT,
                "siblings": files, "private": False, "downloads": 0, "tags": []}  # fmt: skip

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@contextmanager
def fake_hub(repo: str, files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    """Serve a repository on a loopback port."""
    with FakeHub(repo, files) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
