"""API keys: their holders, and the rights and limits of a holder."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....core.errors import ConfigError
from ....core.log import get_logger
from .file import read_key_file
from .usage import KeyLimits

log = get_logger("api")

KEY_ID_DIGITS = 16
"""Hexadecimal digits of a key's id. With 16, two keys hardly ever get the same id."""
ADMIN_ID = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHolder:
    """Identity and limits of a request's sender, found by the API key."""

    id: str
    """The key's name in the key file, or a keyed hash of the key. Never the key."""
    limits: KeyLimits | None = None
    """None: the limits of the admission plugins apply."""
    is_admin: bool = False


class KeyRing:
    """The keys of a server, by their digests.

    A key of --api-key has as its id HMAC-SHA256 of the key with `secret`, so a reader of the logs
    cannot test guessed keys against it. Without `secret`, a random one is drawn and ids change with
    every start. A key of the key file has its name there as its id.
    """

    def __init__(
        self,
        keys: Sequence[str] = (),
        *,
        secret: bytes | None = None,
        file: Path | None = None,
        admin_key: str | None = None,
    ) -> None:
        """Raises ConfigError for an empty key, and for a key file that cannot be used."""
        if isinstance(keys, str) or not all((*keys, admin_key is None or admin_key)):
            # A key of one letter is easily guessed. A request without a key has an empty one.
            raise ConfigError("api_keys is a list of keys, and no key may be empty")
        secret = secret or secrets.token_bytes(32)
        self._file = file
        self._given = {digest(key.encode()): KeyHolder(id=_key_id(key, secret)) for key in keys}
        if admin_key is not None:
            holder = KeyHolder(id=ADMIN_ID, is_admin=True)
            self._given[digest(admin_key.encode())] = holder
        self._holders: Mapping[bytes, KeyHolder] = self._given | self._read_file()

    @property
    def has_admin(self) -> bool:
        """Whether the routes of the administrator exist."""
        return any(holder.is_admin for holder in self._given.values())

    @property
    def has_tenants(self) -> bool:
        """Whether clients need a key."""
        return self._file is not None or not all(h.is_admin for h in self._given.values())

    def find(self, key: bytes) -> KeyHolder | None:
        """The holder of a key. Takes the same time for all keys: it compares digests of all."""
        sent = digest(key)
        found = [h for known, h in self._holders.items() if hmac.compare_digest(sent, known)]
        return found[0] if found else None

    def reload(self) -> None:
        """Read the key file again. If it cannot be used, the keys stay as they are."""
        try:
            self._holders = self._given | self._read_file()
        except ConfigError as error:
            log.error("api_keys_not_reloaded", reason=str(error))
        else:
            log.info("api_keys_reloaded", num_keys=len(self._holders))

    def _read_file(self) -> dict[bytes, KeyHolder]:
        if self._file is None:
            return {}
        found = read_key_file(self._file)
        if ADMIN_ID in found:
            raise ConfigError(
                f"{self._file}: [{ADMIN_ID}] is the id of --admin-key; use another name"
            )
        holders = {key.digest: KeyHolder(id=name, limits=key.limits) for name, key in found.items()}
        if holders.keys() & self._given.keys():
            raise ConfigError(f"a key of {self._file} is also given as --api-key or --admin-key")
        return holders


def digest(key: bytes) -> bytes:
    """The data that the server keeps of a key."""
    return hashlib.sha256(key).digest()


def _key_id(key: str, secret: bytes) -> str:
    return hmac.digest(secret, key.encode(), "sha256").hex()[:KEY_ID_DIGITS]
