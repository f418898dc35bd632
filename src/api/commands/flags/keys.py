"""Flags of `serve`: API keys and the admin key."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

from ....core.errors import ConfigError
from ....core.log import get_logger

log = get_logger("api")
KEY_VARIABLE = "TOKENMILL_API_KEY"
ADMIN_VARIABLE = "TOKENMILL_ADMIN_KEY"
SECRET_VARIABLE = "TOKENMILL_API_KEY_SECRET"


def add_key_flags(group: Any) -> None:
    group.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help=f"key that clients must send; may be repeated (default: ${KEY_VARIABLE}, or no key). "
        f"Plugins see a keyed hash of it, which changes at each start unless ${SECRET_VARIABLE} "
        "is set",
    )
    group.add_argument(
        "--api-key-file",
        type=Path,
        metavar="PATH",
        help="TOML file with named keys and their limits (docs/serving/security.md); SIGHUP reads "
        "it again",
    )
    group.add_argument(
        "--admin-key",
        metavar="KEY",
        help="key for /debug/ and all other paths; without an admin key /debug/ does "
        f"not exist (default: ${ADMIN_VARIABLE})",
    )


def api_keys(args: argparse.Namespace) -> tuple[str, ...]:
    """The API keys from --api-key, or from the environment variable.

    Raises ConfigError for an empty key, so that an unset shell variable does not open the server
    to everyone.
    """
    given = args.api_key
    if given is None:
        key = os.environ.get(KEY_VARIABLE)
        given = [] if key is None else [key]
    return tuple(_checked(key, "API key", f"--api-key or {KEY_VARIABLE}") for key in given)


def admin_key(args: argparse.Namespace) -> str | None:
    """The admin key, if there is one. Raises ConfigError if it is empty or also an API key."""
    given = os.environ.get(ADMIN_VARIABLE) if args.admin_key is None else args.admin_key
    if given is None:
        return None
    key = _checked(given, "admin key", f"--admin-key or {ADMIN_VARIABLE}")
    if key in api_keys(args):
        raise ConfigError("the admin key is also an API key; give it a value of its own")
    return key


def warn_of_visible_keys(args: argparse.Namespace) -> None:
    """Warn of keys that other users of this machine can read: in the command line, or in a file."""
    for flag, given, other in (
        ("--api-key", args.api_key, f"{KEY_VARIABLE} or --api-key-file"),
        ("--admin-key", args.admin_key, ADMIN_VARIABLE),
    ):
        if given is None:
            continue
        if flag[2:].replace("-", "_") not in args.config_keys:
            log.warning("key_is_visible", flag=flag, reason=f"`ps` shows it; use {other}")
        elif args.config.stat().st_mode & 0o077:
            reason = f"other users may read it; run `chmod 600 {shlex.quote(str(args.config))}`"
            log.warning("key_is_visible", flag=flag, file=str(args.config), reason=reason)


def _checked(key: str, what: str, where: str) -> str:
    if not key.strip():
        raise ConfigError(f"the {what} is empty; set {where} to a key, or remove it")
    return key.strip()
