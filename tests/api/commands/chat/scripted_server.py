"""A server with OpenAI's API that answers as a test wants, and keeps the requests that it gets."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE = 60.0


@dataclass(kw_only=True)
class Answer:
    """What the server does with a message."""

    pieces: tuple[str, ...] = ("Hello.",)
    reasoning: str = ""
    finish_reason: str = "stop"
    usage: dict[str, Any] | None = None
    refusal: tuple[int, str] | None = None
    """Status and message, instead of an answer."""
    hangs: bool = False
    """Send the pieces, and wait until the client leaves."""
    breaks: bool = False
    """Send the pieces, and close the connection without an end."""


@dataclass
class ScriptedServer:
    """Its models, the next answers, and the requests."""

    models: list[dict[str, Any]]
    answers: list[Answer] = field(default_factory=list)
    """When there is none, the server says hello."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    has_left: threading.Event = field(default_factory=threading.Event)
    """Set when a client has left an answer that hangs."""

    def __post_init__(self) -> None:
        self._address = ("127.0.0.1", 0)
        self._http: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://{self._address[0]}:{self._address[1]}"

    def start(self) -> None:
        """Listen, again at the same address."""
        handler = type("Handler", (_Handler,), {"script": self})
        self._http = ThreadingHTTPServer(self._address, handler)
        self._http.daemon_threads = True
        self._address = ("127.0.0.1", self._http.server_port)
        threading.Thread(target=self._http.serve_forever, args=(0.01,)).start()

    def stop(self) -> None:
        """Close the address, if it is open."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def contents(self, place: int = -1) -> list[str]:
        """The texts of the messages of a request."""
        return [message["content"] for message in self.bodies[place]["messages"]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ScriptedServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.script.headers.append(dict(self.headers))
        self._send(200, {"object": "list", "data": self.script.models})

    def do_POST(self) -> None:
        script = self.script
        script.headers.append(dict(self.headers))
        script.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        answer = script.answers.pop(0) if script.answers else Answer()
        if answer.refusal is not None:
            status, message = answer.refusal
            self._send(status, {"error": {"message": message}})
            return
        try:
            self._stream(answer)
        except ConnectionError:
            script.has_left.set()

    def _stream(self, answer: Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if answer.reasoning:
            self._event({"choices": [{"delta": {"reasoning_content": answer.reasoning}}]})
        for piece in answer.pieces:
            self._event({"choices": [{"delta": {"content": piece}}]})
        if answer.hangs:
            self.connection.settimeout(PATIENCE)
            if self.connection.recv(1) == b"":
                self.script.has_left.set()
        if answer.hangs or answer.breaks:
            self.close_connection = True
            return
        self._event({"choices": [{"delta": {}, "finish_reason": answer.finish_reason}]})
        if answer.usage is not None:
            self._event({"choices": [], "usage": answer.usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, document: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def scripted_server(*models: dict[str, Any]) -> Iterator[ScriptedServer]:
    """A running server with these models, or with one named "parrot"."""
    server = ScriptedServer(list(models) or [{"id": "parrot", "max_model_len": 1000}])
    server.start()
    try:
        yield server
    finally:
        server.stop()
