"""Bugs of HTTP: limits, headers, keys, validation of bodies, and events of streams."""

from __future__ import annotations

from .planting import Bug

SPLIT = "test_chunks::test_a_client_that_splits_lines_as_python_does_gets_whole_events"


def bug(file: str, old: str, new: str, test: str, caught_as: str = "AssertionError") -> Bug:
    name, _, case = test.partition("::")
    test = f"tests/api/{name}.py" + (f"::{case}" if case else "")
    return Bug(file=f"api/{file}.py", old=old, new=new, test=test, caught_as=caught_as)


BUGS = {
    "bytes of finished bodies stay taken": bug(
        "http/body_budget", "self._free += account.num_bytes", "pass", "test_hostile_bodies"
    ),
    "any number of large bodies is received": bug(
        "http/body_budget", "if num_bytes > self._free:", "if num_bytes < 0:", "test_hostile_bodies"
    ),
    "a name that ends like localhost is local": bug(
        "http/host_check", '.endswith(".localhost")', '.endswith("localhost")', "test_web_pages"
    ),
    "a Host with a dot at its end is refused": bug(
        "http/host_check", '.removesuffix(".")', "", "test_web_pages"
    ),
    "an id of any length": bug(
        "http/request_id", "given = given[:MAX_CLIENT_ID]", "pass", "test_request_id"
    ),
    "an answer does not have the client's id": bug(
        "http/request_id", "given or quote(", "quote(", "test_request_id"
    ),
    "Retry-After: 0": bug(
        "http/errors",
        "str(max(1, math.ceil(error.retry_after)))",
        "str(int(error.retry_after) // 100)",
        "test_overload",
    ),
    "a server error shows its exception": bug(
        "http/errors",
        "return APIError(500, SERVER_ERROR)",
        "return APIError(500, str(error))",
        "test_errors",
    ),
    "401 names another scheme": bug(
        "http/errors",
        'headers["WWW-Authenticate"] = "Bearer"',
        'headers["WWW-Authenticate"] = "Basic"',
        "test_auth",
    ),
    "429 is an invalid request": bug(
        "http/errors", '429: "rate_limit_error", ', "", "test_rate_limit"
    ),
    "one large head is accepted": bug(
        "http/connections/heads",
        "if num_bytes > MAX_HEADER_BYTES:",
        "if num_bytes < 0:",
        "test_overload",
        "TimeoutError",
    ),
    "a body with two lengths is accepted": bug(
        "http/connections/heads",
        'return TWO_LENGTHS if {b"transfer-encoding", b"content-length"} <= names else None',
        "return None",
        "test_overload",
        "TimeoutError",
    ),
    "the newest silent connection is closed": bug(
        "http/connections/room",
        "next(iter(self._silent), None)",
        "next(reversed(self._silent), None)",
        "test_idle_connections",
    ),
    "bearer must be capitalized": bug(
        "http/keys/auth", 'scheme.lower() == b"bearer"', 'scheme == b"Bearer"', "test_auth"
    ),
    "paths below a public path need no key": bug(
        "http/keys/auth",
        "path in PUBLIC_PATHS",
        "path.startswith(tuple(PUBLIC_PATHS))",
        "test_auth",
    ),
    "every key may use the administrator's paths": bug(
        "http/keys/auth",
        "if holder is not None and not holder.is_admin:",
        "if False:",
        "test_keys",
    ),
    "a key file that cannot be read ends all keys": bug(
        "http/keys/ring",
        'log.error("api_keys_not_reloaded", reason=str(error))',
        "self._holders = self._given",
        "test_keys",
    ),
    "names of ignored fields of any length": bug(
        "http/ignored_fields", "name[:_LONGEST_NAME]", "name", "test_fields"
    ),
    "temperatures below zero": Bug(
        file="core/requests/sampling_params.py",
        old="temperature: Annotated[float, Meta(ge=0, le=100)]",
        new="temperature: Annotated[float, Meta(le=100)]",
        test="tests/api/test_fields.py",
        caught_as="AssertionError",
    ),
    "a top_p of zero": Bug(
        file="core/requests/sampling_params.py",
        old="top_p: Annotated[float, Meta(gt=0, le=1)]",
        new="top_p: Annotated[float, Meta(ge=0, le=1)]",
        test="tests/api/test_fields.py",
        caught_as="AssertionError",
    ),
    "tools of any size are decoded": bug(
        "serving/reading/body_sizes",
        "if num_bytes > most:",
        "if num_bytes < 0:",
        "test_loop_time",
    ),
    "fields of any size together": bug(
        "serving/reading/body_sizes", "if total > SUM_BYTES:", "if total < 0:", "test_loop_time"
    ),
    "any number of unknown fields is listed": bug(
        "serving/reading/body_sizes",
        "if raw.count(b'\"') - num_known > _MAX_UNKNOWN_QUOTES:",
        "if num_known < 0:",
        "test_hostile_bodies",
    ),
    "events end with one line end": bug(
        "serving/sse",
        'return b"data: " + document + b"\\n\\n"',
        'return b"data: " + document + b"\\n"',
        "test_answers",
    ),
    "line separators cut an event": bug(
        "serving/sse",
        "document = document.replace(char, escape)",
        "pass",
        SPLIT,
        "JSONDecodeError",
    ),
    "a stream has no end": bug(
        "openai/chunks", 'end=b"data: [DONE]\\n\\n"', 'end=b""', "test_answers"
    ),
    "a stream that fails ends without a word": bug(
        "serving/sse",
        "yield framing.error(shown)",
        "pass",
        "test_early_ends",
        "KeyError",
    ),
    "proxies hold events back": bug(
        "serving/sse", ', "X-Accel-Buffering": "no"', "", "test_answers"
    ),
    "requests of a client that left go on": bug(
        "serving/sse", "await self._requests.aclose()", "pass", "test_disconnects"
    ),
    "the tokens of half a prompt": bug(
        "serving/streams",
        "return sum(len(stream.prompt_token_ids) for stream in self.streams)",
        "return len(self.streams[0].prompt_token_ids)",
        "test_answers",
    ),
}
