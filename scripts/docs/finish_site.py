"""Finishes the site after zensical has built it: links to files, version and date.

A path of the repository in a page, such as `src/core/engine`, becomes a link. It leads to the
repository's address, if pyproject.toml has one (`[project.urls] Repository`). Otherwise the file is
copied into the site, as a page in source/, so that the link works without a network.
"""

from __future__ import annotations

import datetime
import functools
import html
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAMP = "VERSION AND DATE"
"""The text in zensical.toml that version and date replace."""
FOLDERS = ("src", "examples", "benchmarks", "scripts", "tests")
ROOMS = ("api", "backends", "core", "plugins", "testing")
"""Folders of the repository, and those of src/, which pages name without src/."""
FROM_ROOT = ('href="docs/', 'href="')
"""The page of CHANGELOG.md has the links of that file, which is in the root."""
_HOME = re.compile(r'href="\./\.\.(?:/\.\.)*"')
"""zensical's link to the start page, in a page of a folder: a folder, which only servers show."""
_CODE = re.compile(r"<a\b.*?</a>|<pre\b.*?</pre>|<code>([\w./-]+)</code>", re.DOTALL)
_SOURCE_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{path} · tokenmill</title>
<style>
:root {{ color-scheme: light dark }}
body {{ margin: 1rem auto; max-width: 60rem; padding: 0 1rem; font: 16px system-ui, sans-serif }}
pre {{ font-size: 14px; line-height: 1.4; overflow-x: auto }}
</style>
<p><a href="{up}index.html">tokenmill</a> · {path}</p>
{content}
"""


def repository_url() -> str | None:
    """The repository's address in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    url: str | None = project.get("urls", {}).get("Repository")
    return url


def version_and_date() -> str:
    """The version, and the date of the last commit."""
    version = runpy.run_path(str(ROOT / "src/version.py"))["__version__"]
    return f"tokenmill {version}, {source_date()}"


def source_date() -> str:
    """The day of SOURCE_DATE_EPOCH or of the last commit. Outside of git: today."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date().isoformat()
    done = subprocess.run(
        ["git", "log", "-1", "--format=%cs"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or datetime.datetime.now(datetime.UTC).date().isoformat()


def find(text: str) -> Path | None:
    """The file or folder that a page names, from the root or from src/; None if there is none."""
    first, slash, _ = text.partition("/")
    path = Path("src", text) if first in ROOMS else Path(text)
    is_known = slash and first in (*FOLDERS, *ROOMS) and (ROOT / path).exists()
    return path if is_known else None


class Site:
    """The site in a folder. `url`: the address of the repository, or None."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self._folder = folder
        self._url = url
        self._written: set[Path] = set()

    def finish(self) -> None:
        """Change all pages, and write the pages of sources that they link to."""
        stamp = version_and_date()
        for page in sorted(self._folder.rglob("*.html")):
            if page.is_relative_to(self._folder / "source"):
                continue  # of an earlier run
            text = page.read_text(encoding="utf-8").replace(STAMP, stamp)
            up = "../" * len(page.relative_to(self._folder).parent.parts)
            text = _CODE.sub(functools.partial(self._linked, up), text)
            text = _HOME.sub(f'href="{up}index.html"', text.replace(*FROM_ROOT))
            page.write_text(text, encoding="utf-8")

    def _linked(self, up: str, found: re.Match[str]) -> str:
        path = find(found[1]) if found[1] else None
        return found[0] if path is None else f'<a href="{self._target(path, up)}">{found[0]}</a>'

    def _target(self, path: Path, up: str) -> str:
        if self._url is not None:
            return f"{self._url.rstrip('/')}/blob/HEAD/{path.as_posix()}"
        self._write_source(path)
        return f"{up}source/{path.as_posix()}.html"

    def _write_source(self, path: Path) -> None:
        """Write the page of a file or a folder, and of everything in the folder."""
        if path in self._written:
            return
        self._written.add(path)
        up = "../" * len(path.parts)
        content = self._listing(path) if (ROOT / path).is_dir() else _as_text(ROOT / path)
        target = self._folder / "source" / f"{path}.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_SOURCE_PAGE.format(path=path, up=up, content=content), "utf-8")

    def _listing(self, folder: Path) -> str:
        entries = sorted(
            path.relative_to(ROOT)
            for path in (ROOT / folder).iterdir()
            if path.name != "__pycache__" and not path.name.startswith(".")
        )
        for entry in entries:
            self._write_source(entry)
        items = (f'<li><a href="{folder.name}/{e.name}.html">{e.name}</a>' for e in entries)
        return f"<ul>{''.join(items)}</ul>"


def _as_text(path: Path) -> str:
    return f"<pre>{html.escape(path.read_text(encoding='utf-8', errors='replace'))}</pre>"


if __name__ == "__main__":
    Site(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/site"), repository_url()).finish()
