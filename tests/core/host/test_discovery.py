"""Discovery: installed plugins are found without being imported, and imported one at a time."""

from __future__ import annotations

import sys

import pytest

from tokenmill.api.parsing.chosen_parsers import build_answer_parsers
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import PluginError
from tokenmill.core.host.discovery import (
    check_own_installation,
    find_installed,
    import_plugin,
)
from tokenmill.core.host.plugin_set import enabled_plugins
from tokenmill.core.host.routing import build_router
from tokenmill.core.interfaces import ChatFormat

from ..plugin_packages import Packages


def error_of(name: str) -> str:
    with pytest.raises(PluginError) as caught:
        import_plugin(find_installed()[name])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_installed_plugins_are_found_but_not_imported(packages: Packages) -> None:
    packages.install("acme-sjf", "raise SystemExit('imported')", plugin="acme_sjf")
    found = find_installed()
    assert str(found["acme-sjf"].source) == "plugin 'acme-sjf' (acme-sjf 1.0)"
    assert "acme_sjf" not in sys.modules
    assert next(iter(found.values())).source.distribution == "tokenmill"


def test_a_plugin_may_be_an_object_in_a_module_that_states_the_api(packages: Packages) -> None:
    packages.install("acme-object", "class A: ...\nplugin = A()")
    packages.install_metadata("acme-more", {"acme-more": "acme_object:plugin"})
    assert type(import_plugin(find_installed()["acme-more"])).__name__ == "A"


def test_an_import_error_names_plugin_distribution_and_version(packages: Packages) -> None:
    packages.install("acme-broken", "import not_there")
    assert error_of("acme-broken") == (
        "plugin 'acme-broken' (acme-broken 1.0) failed to load: "
        "ModuleNotFoundError: No module named 'not_there'"
    )


def test_a_plugin_cannot_exit_the_process_by_being_imported(packages: Packages) -> None:
    packages.install("acme-exit", "import sys; sys.exit(3)")
    assert "failed to load: SystemExit: 3" in error_of("acme-exit")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "does not say which hook API it supports: declare TOKENMILL_API = (1, 1)"),
        ("TOKENMILL_API = (0, 0)\n", "needs hook API 0..0; this engine has 1"),
        ("TOKENMILL_API = (2, 9)\n", "needs hook API 2..9; this engine has 1"),
        ("TOKENMILL_API = 1\n", "TOKENMILL_API must be two numbers (lowest, highest), got 1"),
    ],
)
def test_a_plugin_must_support_this_hook_api(packages: Packages, header: str, message: str) -> None:
    packages.install("acme-api", "", header=header)
    error = error_of("acme-api")
    assert error.startswith("plugin 'acme-api' (acme-api 1.0)")
    assert message in error


def test_a_name_that_two_distributions_claim_is_refused(packages: Packages) -> None:
    packages.install("acme-one", "", plugin="acme")
    packages.install("acme-two", "", plugin="acme", version="2.0")
    assert error_of("acme") == (
        "the plugin name 'acme' is claimed by several distributions: "
        "acme-one 1.0 and acme-two 2.0; uninstall all but one"
    )


def test_nobody_can_take_the_name_of_a_built_in_plugin(packages: Packages) -> None:
    packages.install("evil", "", plugin="chunked")
    assert "claimed by several distributions: tokenmill" in error_of("chunked")


def test_a_damaged_distribution_hides_no_other(packages: Packages) -> None:
    packages.install_metadata("damaged", {"damaged": "damaged"})
    (packages.folder / "damaged-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe")
    (packages.folder / "damaged-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe")
    packages.install("acme-fine", "")
    found = find_installed()
    assert "acme-fine" in found
    assert "chunked" in found


def test_a_stale_installation_says_to_reinstall() -> None:
    check_own_installation(find_installed().values(), ["chunked"])
    with pytest.raises(PluginError) as caught:
        check_own_installation(find_installed().values(), ["chunked", "brand-new"])
    assert "tokenmill's own plugins are not installed: brand-new." in str(caught.value)
    assert "pip install -e ." in str(caught.value)


def test_packages_are_read_once_until_another_one_is_installed(packages: Packages) -> None:
    packages.install("acme-one", "")
    found = find_installed()
    (packages.folder / "server.log").write_text("no package")
    assert find_installed() is found
    packages.install("acme-two", "")
    assert "acme-two" not in found and "acme-two" in find_installed()


def test_a_server_loads_plugins_once_for_its_parsers_and_its_router(packages: Packages) -> None:
    packages.install(
        "acme-counted", "calls = []\n@hookimpl\ndef register(registry): calls.append(1)\n"
    )
    file = packages.write_settings('[plugins]\nenable = ["acme-counted"]\n', "counted.toml")
    config = EngineConfig.from_options(plugins_file=file, data_parallel_size=2)
    build_router(config)
    build_answer_parsers(config, ChatFormat(source="{{ messages }}"))
    assert sys.modules["acme_counted"].calls == [1]
    packages.write_settings("", "counted.toml")
    loaded = enabled_plugins(config).loaded
    assert "chunked" in loaded and "acme-counted" not in loaded
