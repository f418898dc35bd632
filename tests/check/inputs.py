"""The files that a module of tests depends on, and git's ids of their contents.

Python files are found by their imports. Three kinds of files count whose own imports do not:

- the __init__.py of a package on the way to an imported module, which only offers names;
- conftest.py, whose imports are the fixtures of all tests;
- files of src/core, which hold data and decisions: what depends on these names the folder.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

PACKAGE = "tokenmill"
"""The package, in the folder src. Its own names load its parts later: all of them are inputs."""
DATA = Path("src", "core")


def digest_inputs(root: Path, module: Path, declared: Iterable[str]) -> str | None:
    """The digest of all inputs of a module of tests as they are in the working tree.

    `declared` are files and folders that no import names, relative to `root`. Returns None without
    git. Raises FileNotFoundError for a declared path that has no file.
    """
    whole = list(declared)
    starts = [module, *(root / path for path in whole if path.endswith(".py"))]
    paths = {str(path.relative_to(root)) for path in python_inputs(root, starts)}
    if PACKAGE in paths:
        paths.remove(PACKAGE)
        whole.append("src")
    for path in whole:
        found = _git(root, "ls-files", "-co", "--exclude-standard", "--", path)
        if found is None:
            return None
        files = [name for name in found.splitlines() if (root / name).is_file()]
        if not files:
            raise FileNotFoundError(f"{module} depends on {path}, which has no files")
        paths.update(files)
    names = sorted(paths)
    ids = _git(root, "hash-object", "--stdin-paths", given="\n".join(names))
    if ids is None:
        return None
    pairs = zip(names, ids.splitlines(), strict=True)
    return hashlib.sha256("\n".join(map(" ".join, pairs)).encode()).hexdigest()[:20]


def python_inputs(root: Path, starts: Sequence[Path]) -> set[Path]:
    """Python files, the conftest.py files above them, and the files of `root` that they import.

    The path `root/tokenmill`, which is no file, stands for the whole package.
    """
    folders = {one for start in starts for one in start.parents if one.is_relative_to(root)}
    conftests = (folder / "conftest.py" for folder in folders)
    found: set[Path] = set()
    todo = [*starts, *(path for path in conftests if path.is_file())]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.add(path)
        if path.is_file():
            if path.name != "conftest.py" and not path.is_relative_to(root / DATA):
                todo += _imported(root, path)
            packages = (folder / "__init__.py" for folder in path.parents)
            found |= {one for one in packages if one.is_file() and one.is_relative_to(root)}
    return found


@functools.cache
def _imported(root: Path, path: Path) -> tuple[Path, ...]:
    """The files of `root` that a Python file imports by name, wherever in it."""
    own = list(path.relative_to(root).with_suffix("").parts[:-1])
    own[:1] = [PACKAGE] if own[:1] == ["src"] else own[:1]
    names = _names(ast.parse(path.read_text(encoding="utf-8")), own)
    return tuple(file for name in names if (file := _file_of(root, *name)) is not None)


def _names(tree: ast.AST, own: list[str]) -> Iterator[tuple[str, str | None]]:
    """Pairs of a module and the name that is taken from it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = own[: len(own) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)
        else:
            yield from _names(node, own)


def _file_of(root: Path, module: str, name: str | None) -> Path | None:
    """The file in which a name is found: a module of that name, or the module that offers it."""
    parts = module.split(".")
    if parts == [PACKAGE] and (name is None or _module(root, [*parts, name]) is None):
        return root / PACKAGE
    return (_module(root, [*parts, name]) if name else None) or _module(root, parts)


def _module(root: Path, parts: list[str]) -> Path | None:
    folder = root.joinpath("src" if parts[0] == PACKAGE else parts[0], *parts[1:])
    candidates = (folder.with_suffix(".py"), folder / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _git(root: Path, *arguments: str, given: str = "") -> str | None:
    """What git prints, or None without git or outside of a checkout."""
    try:
        ran = subprocess.run(
            ["git", *arguments], cwd=root, input=given, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return ran.stdout if ran.returncode == 0 else None
