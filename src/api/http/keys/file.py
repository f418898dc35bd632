"""Reads --api-key-file: a TOML file with one table per key, under the name of the key's holder.

[team-search]
key = "sk-..."                 # or sha256 = "...", the SHA-256 of the key in hexadecimal digits
requests_per_minute = 600      # all limits are optional; 0: no limit
tokens_per_minute = 200_000
max_concurrent_requests = 16
"""

from __future__ import annotations

import hashlib
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ....core.errors import ConfigError
from ....core.log import get_logger
from .usage import KeyLimits

log = get_logger("api")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class NamedKey:
    digest: bytes
    """SHA-256 of the key."""
    limits: KeyLimits


class _Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    key: str | None = None
    sha256: str | None = None
    requests_per_minute: Annotated[float, Meta(ge=0)] = 0.0
    tokens_per_minute: Annotated[float, Meta(ge=0)] = 0.0
    max_concurrent_requests: Annotated[int, Meta(ge=0)] = 0


def read_key_file(path: Path) -> dict[str, NamedKey]:
    """The keys by name. Raises ConfigError, whose message never contains a key.

    Logs a warning if users other than the file's owner may read keys in it.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read --api-key-file {path}: {error.strerror}") from error
    try:
        tables = msgspec.toml.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"--api-key-file {path}: {error}") from error
    entries = {name: _entry(path, name, table) for name, table in tables.items()}
    if not entries:
        raise ConfigError(f"--api-key-file {path} has no key; add a table [NAME] with key = '...'")
    has_secrets = any(entry.key is not None for entry in entries.values())
    if has_secrets and mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning(
            "api_key_file_is_open",
            path=str(path),
            mode=f"{stat.S_IMODE(mode):o}",
            advice="other users may read the keys: chmod 600, or use sha256",
        )
    keys = {name: _named_key(path, name, entry) for name, entry in entries.items()}
    _check_unique(path, keys)
    return keys


def _entry(path: Path, name: str, table: object) -> _Entry:
    where = f"--api-key-file {path}, [{name[:64]}]"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table with key = '...'")
    try:
        return msgspec.convert(table, _Entry)
    except msgspec.ValidationError as error:
        reason, _, field = str(error).partition(" - at `$.")
        raise ConfigError(f"{where}: {field.rstrip('`')} {reason}".replace(":  ", ": ")) from error


def _named_key(path: Path, name: str, entry: _Entry) -> NamedKey:
    where = f"--api-key-file {path}, [{name[:64]}]"
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name has 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    if (entry.key is None) == (entry.sha256 is None):
        raise ConfigError(f"{where} needs either key or sha256")
    if entry.key is not None and not entry.key.strip():
        raise ConfigError(f"{where}: the key is empty")
    if entry.sha256 is not None and not _DIGEST.fullmatch(entry.sha256):
        raise ConfigError(f"{where}: sha256 must have 64 hexadecimal digits")
    if entry.key is not None:
        digest = hashlib.sha256(entry.key.strip().encode()).digest()
    else:
        digest = bytes.fromhex(entry.sha256 or "")
    limits = KeyLimits(
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
        max_concurrent_requests=entry.max_concurrent_requests,
    )
    return NamedKey(digest, limits)


def _check_unique(path: Path, keys: dict[str, NamedKey]) -> None:
    names: dict[bytes, str] = {}
    for name, key in keys.items():
        other = names.setdefault(key.digest, name)
        if other != name:
            raise ConfigError(f"--api-key-file {path}: [{other}] and [{name}] have the same key")
