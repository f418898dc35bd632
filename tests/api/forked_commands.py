"""Runs the command line in forks of one process that has imported it: `run_forked("serve", ...)`.

A new interpreter for each of a hundred wrong flags would spend half a second on the same imports.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parents[2]


def run_forked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `tokenmill ARGUMENTS` in the root of the repository, with nothing on standard input."""
    process = _parent()
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(arguments) + "\n")
    process.stdin.flush()
    status, out, err = json.loads(process.stdout.readline())
    return subprocess.CompletedProcess(arguments, status, out, err)


@functools.cache
def _parent() -> subprocess.Popen[str]:
    """The process that forks. It ends when its standard input does."""
    command = [sys.executable, "-m", __name__]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def main() -> None:
    """Fork for each line of standard input, and print the status, the output and the errors."""
    import tokenmill.api.cli
    import tokenmill.api.server
    import tokenmill.core.host.plugin_host  # noqa: F401

    for line in sys.stdin:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if child == 0:
                _run(json.loads(line), out, err)
            _, status = os.waitpid(child, 0)
            print(json.dumps([os.waitstatus_to_exitcode(status), *map(_text_of, (out, err))]))
            sys.stdout.flush()


def _run(arguments: list[str], out: IO[bytes], err: IO[bytes]) -> NoReturn:
    """Become the command. The streams are new ones, as in a new interpreter."""
    from tokenmill.api import cli

    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, out.fileno(), err.fileno())):
        os.dup2(file, number)
    sys.stdin, sys.stdout, sys.stderr = map(os.fdopen, (0, 1, 2), "rww")
    status: object = 70
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 0)


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    main()
