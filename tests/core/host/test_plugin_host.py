"""PluginHost.load: which plugins are imported and chosen, and how a start is refused."""

from __future__ import annotations

import contextlib
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import anyio
import pytest

from tokenmill.backends.attention.choice import choose_attention_backend
from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.events import Stopping
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.registry import Registry
from tokenmill.core.errors import ConfigError, PluginError
from tokenmill.core.host.listing import describe_plugin, discover_plugins
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.log import EventFormatter

from ..plugin_packages import Packages

ENGINE = cast(Any, object())

SJF = """
    from dataclasses import dataclass
    @dataclass(frozen=True)
    class Options:
        patience: float = 30.0
    class SJF:
        "Shortest job first."
        def __init__(self, options):
            self.options = options
        @hookimpl
        def schedule(self, step): ...
    @hookimpl
    def register(registry):
        registry.offer(kinds.SCHEDULER, "acme-sjf", SJF, options=Options)
"""


def load(*extra: object, **config: Any) -> PluginHost:
    return PluginHost.load(EngineConfig(**config), extra=extra)


def refusal(*extra: object, **config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*extra, **config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_documented_default_is_chosen(packages: Packages) -> None:
    assert load().names == {
        "scheduler": "chunked",
        "scheduling_policy": "fcfs",
        "preemption_mode": "recompute",
        "distributed_executor_backend": "inprocess",
        "attention_backend": "cpu",
        "linear_backend": "cpu",
        "model_impl": "native",
        "grammar_backend": "llguidance",
        "speculative_method": "none",
        "draft_length": "adaptive",
        "tool_call_parser": "hermes",
        "reasoning_parser": "think",
        "media_processor": "idefics3",
        "router": "prefix-aware",
    }


def test_a_flag_beats_the_file_and_the_file_beats_the_default(packages: Packages) -> None:
    path = packages.write_settings("[scheduler]\nuse = 'prefill-first'", "mine.toml")
    assert load(plugins_file=path).names["scheduler"] == "prefill-first"
    assert load(plugins_file=path, scheduler="chunked").names["scheduler"] == "chunked"
    assert load(scheduler="default").names["scheduler"] == "prefill-first"


def test_speculative_adaptive_selects_the_draft_length(packages: Packages) -> None:
    assert load(speculative_adaptive=True).names["draft_length"] == "adaptive"
    assert load(speculative_adaptive=False).names["draft_length"] == "fixed"
    assert load(speculative_adaptive=False, draft_length="fixed").names["draft_length"] == "fixed"
    path = packages.write_settings("[draft_length]\nuse = 'fixed'", "mine.toml")
    assert load(plugins_file=path).names["draft_length"] == "fixed"
    assert load(plugins_file=path, speculative_adaptive=True).names["draft_length"] == "adaptive"
    assert refusal(speculative_adaptive=True, draft_length="fixed") == (
        "--speculative-adaptive=True does not select the draft length 'fixed' that "
        "--draft-length names: give only one of them"
    )


def test_enable_chunked_prefill_selects_the_scheduler(packages: Packages) -> None:
    assert load(enable_chunked_prefill=True).names["scheduler"] == "chunked"
    assert load(enable_chunked_prefill=False).names["scheduler"] == "prefill-first"
    agreed = load(enable_chunked_prefill=False, scheduler="default")
    assert agreed.names["scheduler"] == "prefill-first"
    assert refusal(enable_chunked_prefill=True, scheduler="prefill-first") == (
        "--enable-chunked-prefill=True does not select the scheduler 'prefill-first' that "
        "--scheduler names: give only one of them"
    )


def test_a_scheduler_of_a_third_party_may_be_what_a_switch_selects(packages: Packages) -> None:
    class Offers:
        TOKENMILL_API = (1, 1)

        @hookimpl
        def register(self, registry: Registry) -> None:
            registry.offer(kinds.SCHEDULER, "mine", Own, switch=True)

    class Own:
        @hookimpl
        def schedule(self, step: Any) -> None: ...

    config = EngineConfig(enable_chunked_prefill=True, scheduler="mine")
    assert PluginHost.load(config, extra=[Offers()]).names["scheduler"] == "mine"
    path = packages.write_settings("[plugins]\ndisable = ['chunked']\n", "mine.toml")
    config = EngineConfig(enable_chunked_prefill=True, plugins_file=path)
    assert PluginHost.load(config, extra=[Offers()]).names["scheduler"] == "mine"


def test_installed_is_not_active(packages: Packages) -> None:
    packages.install("acme-sjf", SJF)
    host = load()
    assert "acme_sjf" not in sys.modules
    states = {info.name: info.state for info in host.plugins()}
    assert states["acme-sjf"] == "available"
    assert states["chunked"] == "enabled"


@pytest.mark.parametrize("name", ["acme-sjf", "acme_sjf"])
def test_a_flag_that_names_an_installed_plugin_enables_it(packages: Packages, name: str) -> None:
    packages.install("acme-sjf", SJF)
    host = load(scheduler=name)
    info = next(info for info in host.plugins() if info.name == "acme-sjf")
    assert (info.state, info.distribution, info.version) == ("enabled", "acme-sjf", "1.0")
    assert info.provides == info.chosen == ("scheduler:acme-sjf",)
    assert info.hooks == ("register", "schedule")


def test_a_file_that_chooses_a_plugin_enables_it_with_options(packages: Packages) -> None:
    packages.install("acme-sjf", SJF)
    packages.write_settings("[scheduler]\nuse = 'acme-sjf'\npatience = 1")
    assert load().names["scheduler"] == "acme-sjf"
    packages.write_settings("[scheduler]\nuse = 'acme-sjf'\npatence = 1")
    assert refusal() == (
        "plugins.toml [scheduler] patence: 'acme-sjf' has no such option. It takes: patience. "
        "Did you mean 'patience'?"
    )


def test_a_file_that_was_only_found_is_logged_and_must_not_set_every_option(
    packages: Packages, caplog: pytest.LogCaptureFixture
) -> None:
    packages.install("acme-sjf", SJF.replace("= 30.0", '= field(metadata={"named_only": True})')
                     .replace("import dataclass", "import dataclass, field"))  # fmt: skip
    packages.write_settings("[scheduler]\nuse = 'acme-sjf'\npatience = 1")
    with caplog.at_level("INFO"):
        assert refusal() == (
            "plugins.toml [scheduler] patience: only a file that is named may set it: give "
            "--plugins-file plugins.toml"
        )
    assert "plugins_file_found" in caplog.text
    caplog.clear()
    for name in ("plugins.toml", "./plugins.toml", str(packages.folder / "plugins.toml")):
        assert load(plugins_file=name).names["scheduler"] == "acme-sjf"
    assert "plugins_file_found" not in caplog.text


def test_options_of_the_file_s_provider_are_not_given_to_another_one(
    packages: Packages, caplog: pytest.LogCaptureFixture
) -> None:
    packages.install("acme-sjf", SJF)
    packages.write_settings("[scheduler]\nuse = 'acme-sjf'\npatience = 1")
    assert load(scheduler="chunked").names["scheduler"] == "chunked"
    assert "plugin_options_unused" in caplog.text


def test_an_unknown_name_lists_what_is_known_and_what_is_only_installed(
    packages: Packages,
) -> None:
    packages.install("acme-sjf", SJF)
    message = refusal(scheduler="chunky")
    assert message.startswith(
        "no scheduler named 'chunky'. Did you mean 'chunked'? Known: chunked, default, "
        "prefill-first. Installed but not enabled: acme-sjf."
    )
    packages.write_settings("[preemption_mode]\nuse = 'swop'")
    assert refusal().startswith("plugins.toml [preemption_mode]: no preemption mode named 'swop'")


def test_a_disabled_plugin_is_not_enabled_by_being_named(packages: Packages) -> None:
    packages.write_settings("[plugins]\ndisable = ['prefill-first']")
    assert "Installed but not enabled: prefill-first" in refusal(scheduler="prefill-first")
    states = {info.name: info.state for info in load().plugins()}
    assert states["prefill-first"] == "disabled"


def test_a_broken_plugin_stops_a_strict_start(packages: Packages) -> None:
    packages.install("acme-broken", "1 / 0")
    packages.write_settings("[plugins]\nenable = ['acme-broken']")
    assert refusal() == (
        "plugin 'acme-broken' (acme-broken 1.0) failed to load: ZeroDivisionError: division by zero"
    )


def test_a_broken_plugin_is_left_out_and_shown_when_not_strict(packages: Packages) -> None:
    packages.install("acme-broken", "1 / 0")
    packages.write_settings("[plugins]\nenable = ['acme-broken']\nstrict = false")
    for infos in (load().plugins(), discover_plugins()):
        info = next(info for info in infos if info.name == "acme-broken")
        assert info.state == "failed"
        assert info.error is not None and "division by zero" in info.error
        head, first, line, *_ = info.traceback.splitlines()
        assert head.startswith("Traceback") and "acme_broken.py" in first and line == "    1 / 0"
        assert info.traceback.endswith("ZeroDivisionError: division by zero")
    assert refusal(scheduler="acme-broken").startswith("plugin 'acme-broken' (acme-broken 1.0)")
    assert "Left out: plugin 'acme-broken'" in refusal(scheduler="acme")


@pytest.mark.parametrize("strict", [True, False])
def test_the_log_has_the_traceback_of_a_broken_plugin_once(
    packages: Packages, caplog: pytest.LogCaptureFixture, strict: bool
) -> None:
    packages.install("acme-broken", "1 / 0")
    packages.write_settings(f"[plugins]\nenable = ['acme-broken']\nstrict = {strict}".lower())
    for _ in range(2):
        with contextlib.suppress(PluginError):
            load()
    [line] = [r for r in caplog.records if r.msg == "plugin_not_loaded"]
    text = EventFormatter().format(line)
    assert "acme-broken" in text.splitlines()[0]
    assert "acme_broken.py" in text.splitlines()[2] and text.endswith("division by zero")


def test_an_enabled_plugin_that_is_not_installed_is_named(packages: Packages) -> None:
    packages.write_settings("[plugins]\nenable = ['chunkd']")
    assert refusal() == (
        "plugin 'chunkd' is enabled in plugins.toml, but not installed. Did you mean 'chunked'?"
    )
    packages.install("tokenmill-acme", SJF, plugin="acme-sjf")
    packages.write_settings("[plugins]\nenable = ['tokenmill-acme']")
    assert refusal().endswith("but not installed; the package of that name has the plugin acme-sjf")


def test_a_name_that_two_distributions_claim_is_reported_however_one_comes_to_it(
    packages: Packages,
) -> None:
    packages.install("acme-one", SJF, plugin="acme-sjf")
    packages.install("acme-two", SJF, plugin="acme-sjf", version="2.0")
    conflict = (
        "the plugin name 'acme-sjf' is claimed by several distributions: "
        "acme-one 1.0 and acme-two 2.0; uninstall all but one"
    )
    assert refusal(scheduler="acme-sjf") == conflict
    [listed] = [info for info in discover_plugins() if info.name == "acme-sjf"]
    assert (listed.state, listed.error) == ("available", conflict)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "@hookimpl\ndef on_stepp(event): ...",
            "implements the unknown hook 'on_stepp'. Did you mean 'on_step'?",
        ),
        ("@hookimpl\ndef on_step(evnt): ...", "Argument(s) {'evnt'} are declared in the hookimpl"),
        ("def register(registry): ...", "implements no hook: is it marked with @hookimpl?"),
        ("@hookimpl\nasync def on_step(event): ...", "'on_step' is async: hooks are plain"),
        ("@hookimpl\ndef on_step(*, event): ...", "'on_step' has keyword-only arguments"),
        ("@hookimpl\ndef schedule(step): ...", "implements 'schedule' without being chosen"),
        ("@hookimpl(wrapper=True)\ndef on_step(): yield", "'on_step' cannot be wrapped, only"),
        ("@hookimpl(hookwrapper=True)\ndef schedule(): yield", "is an old-style wrapper"),
        ("@hookimpl\ndef register(registry): 1 / 0", "failed in 'register': ZeroDivisionError"),
        (
            "@hookimpl\ndef register(registry): registry.offer(kinds.SCHEDULER, 'chunked', dict)",
            "is provided by both plugin 'chunked' (tokenmill",
        ),
        (
            "@hookimpl\ndef register(registry):\n"
            "    registry.offer(kinds.OBSERVER, 'x', lambda context: object())",
            "implements no hook: is it marked with @hookimpl?",
        ),
        (
            "@hookimpl\ndef register(registry):\n"
            "    registry.offer(kinds.OBSERVER, 'x', lambda context: 1 / 0)",
            "observer 'x' of plugin 'acme-wrong' (acme-wrong 1.0) could not be built",
        ),
    ],
)
def test_what_would_fail_later_is_refused_at_the_start(
    packages: Packages, code: str, message: str
) -> None:
    packages.install("acme-wrong", "")
    (packages.folder / "acme_wrong.py").write_text(
        "from tokenmill.plugin import hookimpl, kinds\nTOKENMILL_API = (1, 1)\n" + code
    )
    packages.write_settings("[plugins]\nenable = ['acme-wrong']")
    error = refusal()
    assert "plugin 'acme-wrong' (acme-wrong 1.0)" in error
    assert message in error
    packages.write_settings("[plugins]\nenable = ['acme-wrong']\nstrict = false")
    assert load().names["scheduler"] == "chunked"


def test_a_scheduler_without_hookimpl_is_refused(packages: Packages) -> None:
    packages.install("acme-sjf", SJF.replace("        @hookimpl\n", ""))
    assert refusal(scheduler="acme-sjf").endswith(
        "implements no hook: is it marked with @hookimpl?"
    )


def test_a_plugin_that_fills_a_slot_cannot_be_left_out(packages: Packages) -> None:
    both = "    registry.offer(kinds.OBSERVER, 'acme-watch', lambda context: 1 / 0)\n"
    packages.install("acme-sjf", SJF.rstrip() + "\n    " + both)
    packages.write_settings("[plugins]\nstrict = false")
    assert "observer 'acme-watch'" in refusal(scheduler="acme-sjf")


def test_options_of_an_observer_nobody_offers_are_refused(packages: Packages) -> None:
    path = packages.write_settings("[observer.stats-logg]\ninterval = 1", "mine.toml")
    assert refusal(plugins_file=path) == (
        f"{path} [observer.stats-logg]: no observer named 'stats-logg'. "
        "Did you mean 'stats-log'? Known: kv-events, otel, preemption-log, prometheus, stats-log."
    )
    path = packages.write_settings(
        "[plugins]\ndisable = ['stats-log']\n[observer.stats-log]\ninterval = 1", "mine.toml"
    )
    load(plugins_file=path)  # options of what is switched off do no harm


def test_a_program_hands_over_modules_and_objects(packages: Packages) -> None:
    seen: list[object] = []

    class Watcher:
        @hookimpl
        def on_stopping(self, event: Stopping) -> None:
            seen.append(event)

    module = ModuleType("my_module")
    module.on_stopping = hookimpl(lambda: seen.append("module"))  # type: ignore[attr-defined]
    host = load(Watcher(), Watcher(), module)
    host.emit(Stopping())
    assert seen == ["module", Stopping(), Stopping()]
    names = [info.name for info in host.plugins() if info.distribution == "-"]
    assert names == ["Watcher", "Watcher-2", "my-module"]


def test_what_a_program_hands_over_must_be_an_instance_with_hooks(packages: Packages) -> None:
    class Watcher:
        @hookimpl
        def on_stopping(self, event: Stopping) -> None: ...

    assert "is the class Watcher: name a module or an instance" in refusal(Watcher)
    assert "implements no hook" in refusal(object())
    assert "must be hashable" in refusal([])


def test_a_misspelt_event_hook_of_a_policy_that_is_called_directly_is_refused(
    packages: Packages,
) -> None:
    class Order:
        uses_priority = False

        def key(self, request: object, now: float) -> tuple[float, ...]:
            return (now,)

        @hookimpl
        def on_finishd(self, event: object) -> None: ...

    assert "unknown hook 'on_finishd'. Did you mean 'on_finished'?" in refusal(Order())


def test_a_policy_that_is_the_plugin_itself_is_refused_in_a_sentence(packages: Packages) -> None:
    class Both:
        TOKENMILL_API = (1, 1)
        uses_priority = False

        def key(self, request: object, now: float) -> tuple[float, ...]:
            return (now,)

        @hookimpl
        def register(self, registry: Registry) -> None:
            registry.offer(kinds.SCHEDULING_POLICY, "both", lambda: self)

    found = refusal(Both(), scheduling_policy="both")
    assert "is the plugin itself; offer another object" in found and len(found) < 200


def test_a_draft_length_policy_may_have_event_hooks(packages: Packages) -> None:
    seen: list[object] = []

    class Lengths:
        def choose(self, requests: object, limits: object) -> list[int]:
            return []

        def observe(self, step: object) -> None: ...

        def forget(self, engine_id: str) -> None: ...

        @hookimpl
        def on_stopping(self, event: Stopping) -> None:
            seen.append(event)

    load(Lengths()).emit(Stopping())
    assert seen == [Stopping()]


def test_an_object_with_a_part_of_a_policy_names_what_is_missing(packages: Packages) -> None:
    class Order:
        def key(self, request: object, now: float) -> tuple[float, ...]:
            return (now,)

    assert refusal(Order()) == "Order lacks uses_priority, which a scheduling policy needs"


class Backwards:
    """A policy that is passed in as an object."""

    uses_priority = False

    def key(self, request: Any, now: float) -> tuple[float, ...]:
        return (-request.view.arrival_time,)


class Greedy:
    """A scheduler that is passed in as an object and also observes."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @hookimpl
    def schedule(self) -> None:
        self.calls.append("schedule")

    @hookimpl
    def on_stopping(self) -> None:
        self.calls.append("on_stopping")


def test_policies_that_a_program_hands_over_need_no_package_and_no_name(
    packages: Packages,
) -> None:
    class NoDrafts:
        def choose(self, requests: list[object], limits: object) -> list[int]:
            return [0] * len(requests)

        def observe(self, step: object) -> None: ...
        def forget(self, engine_id: str) -> None: ...

    scheduler = Greedy()
    host = load(Backwards(), scheduler, NoDrafts())
    assert host.names["draft_length"] == "NoDrafts"
    assert host.schedule(cast(Any, None))
    host.emit(Stopping())
    assert scheduler.calls == ["schedule", "on_stopping"]
    assert host.names["scheduling_policy"] == "Backwards"
    assert host.names["scheduler"] == "Greedy"
    chosen = {info.name: info.chosen for info in host.plugins() if info.distribution == "-"}
    assert chosen["Greedy"] == ("scheduler:Greedy",)


def test_two_choices_for_one_slot_are_refused(packages: Packages) -> None:
    assert "both passed in as scheduler; give only one" in refusal(Greedy(), Greedy())
    with pytest.raises(ConfigError, match="scheduler='chunked' chooses a scheduler, but plugin"):
        load(Greedy(), scheduler="chunked")


def test_an_object_that_cannot_be_passed_in_is_refused_with_advice(packages: Packages) -> None:
    class Both(Greedy, Backwards): ...

    class Backend:
        def reasons_against(self, spec: object) -> list[str]:
            return []

    assert "is scheduler and scheduling policy at once" in refusal(Both())
    for plugin in (Backend, Backend()):
        assert 'and set attention_backend="NAME"' in refusal(plugin)


def test_an_object_that_is_passed_in_must_keep_to_its_api_range(packages: Packages) -> None:
    class Old:
        TOKENMILL_API = (0, 0)

        @hookimpl
        def on_stopping(self) -> None: ...

    assert refusal(Old()) == "plugin 'Old' needs hook API 0..0; this engine has 1"


def test_every_engine_has_providers_of_its_own(packages: Packages) -> None:
    packages.install("acme-order", "")
    (packages.folder / "acme_order.py").write_text(
        "from tokenmill.plugin import hookimpl, kinds\nTOKENMILL_API = (1, 1)\n"
        "class Order:\n    uses_priority = False\n    def key(self, request, now): ...\n"
        "@hookimpl\ndef register(registry):\n"
        "    registry.offer(kinds.SCHEDULING_POLICY, 'acme-order', Order)\n"
    )
    one, two = load(scheduling_policy="acme-order"), load(scheduling_policy="acme-order")
    assert type(one.order) is type(two.order)
    assert one.order is not two.order


def test_attention_backends_are_built_only_when_they_are_needed(packages: Packages) -> None:
    packages.install(
        "acme-attention",
        """
        built = []
        def make():
            built.append(1)
            class Backend:
                reasons_against = None
            return Backend
        @hookimpl
        def register(registry):
            registry.offer(kinds.ATTENTION_BACKEND, "acme-attention", make)
        """,
    )
    host = load(attention_backend="acme-attention")
    built = sys.modules["acme_attention"].built
    assert built == []
    choose_attention_backend(host)
    assert built == [1]


def test_lifespans_are_entered_and_left_and_blamed(packages: Packages) -> None:
    log: list[str] = []

    class Context:
        def __init__(self, fails: str) -> None:
            self.fails = fails

        async def __aenter__(self) -> None:
            log.append("enter")
            if self.fails == "enter":
                raise OSError("no connection")

        async def __aexit__(self, *exc_info: object) -> None:
            log.append("exit")
            if self.fails == "exit":
                raise OSError("lost")

    class Living:
        def __init__(self, fails: str = "") -> None:
            self.fails = fails

        @hookimpl
        def lifespan(self, engine: object) -> Context | None:
            assert engine is ENGINE
            return None if self.fails == "absent" else Context(self.fails)

    async def live(host: PluginHost) -> None:
        async with AsyncExitStack() as stack:
            for lifespan in host.lifespans(ENGINE):
                await stack.enter_async_context(lifespan)

    host = load(Living(), Living("exit"), Living("absent"))
    anyio.run(live, host)
    assert log == ["enter", "enter", "exit", "exit"]
    assert sum(info.failures for info in host.plugins()) == 1
    with pytest.raises(PluginError, match="plugin 'Living' failed in 'lifespan': OSError: no conn"):
        anyio.run(live, load(Living("enter")))


def test_a_lifespan_hook_that_raises_refuses_the_start(packages: Packages) -> None:
    class Broken:
        @hookimpl
        def lifespan(self) -> None:
            raise OSError("planted")

    with pytest.raises(PluginError, match="plugin 'Broken' failed in 'lifespan': OSError: planted"):
        load(Broken()).lifespans(ENGINE)


def test_the_list_of_plugins_needs_no_engine(packages: Packages) -> None:
    packages.install("acme-sjf", SJF)
    packages.write_settings("[scheduler]\nuse = 'no-such'")
    infos = {info.name: info for info in discover_plugins()}
    assert infos["fcfs"].chosen == ("scheduling_policy:fcfs",)
    assert infos["chunked"].provides == ("scheduler:chunked",)
    assert infos["chunked"].chosen == ()
    assert "acme_sjf" not in sys.modules


def test_a_plugin_is_described_even_if_it_is_not_enabled(packages: Packages) -> None:
    packages.install("acme-sjf", "")
    (packages.folder / "acme_sjf.py").write_text(
        '"""Serves short jobs first."""\nTOKENMILL_API = (1, 1)\n'
        "from tokenmill.plugin import hookimpl, kinds\n"
        "class SJF: 'Shortest job first.'\n"
        "@hookimpl\ndef register(registry): registry.offer(kinds.SCHEDULER, 'acme-sjf', SJF)\n"
    )
    described = describe_plugin("acme_sjf")
    assert described.info.state == "available"
    assert described.doc == "Serves short jobs first."
    assert [(p.kind, p.name, p.doc) for p in described.providers] == [
        ("scheduler", "acme-sjf", "Shortest job first.")
    ]
    options = describe_plugin("stats-log").providers[0].options
    assert [(o.name, o.type, o.default) for o in options] == [("interval", "float", "10.0")]


def test_a_description_shows_the_options_that_plugins_toml_sets(tmp_path: Path) -> None:
    file = tmp_path / "plugins.toml"
    file.write_text("[observer.stats-log]\ninterval = 3.5\n")
    (interval,) = describe_plugin("stats-log", str(file)).providers[0].options
    assert (interval.default, interval.configured) == ("10.0", "3.5")


def test_describing_a_broken_or_unknown_plugin_says_so(packages: Packages) -> None:
    packages.install("acme-broken", "1 / 0")
    described = describe_plugin("acme-broken")
    assert described.info.state == "failed"
    assert "division by zero" in (described.info.error or "")
    with pytest.raises(PluginError, match=r"no plugin named 'acme'\. Did you mean 'acme-broken'"):
        describe_plugin("acme")
