"""The pages on plugins are true: the tutorial is the example, the recipes pass the kit."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny import CONFIG
from tests.backends.weights.gguf_writing import write_gguf
from tests.oracle.architectures import write
from tokenmill.api.cli import make_parser
from tokenmill.api.parsing.chosen_parsers import build_answer_parsers
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.models.opening import describe
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import ChatFormat
from tokenmill.testing import AttentionConformance
from tokenmill.testing.conformance.computing import grammar, logits, media, model, weight_format
from tokenmill.testing.conformance.engine.speculating import SHAPES as DRAFTING_SHAPES
from tokenmill.testing.conformance.engine.workload import SHAPES
from tokenmill.testing.conformance.executor import suite as executors
from tokenmill.testing.conformance.executor.worker import decode_plan, make_spec, prompt_plan
from tokenmill.testing.conformance.installed import LoadedPlugin, Subject
from tokenmill.testing.conformance.linear import suite as linear
from tokenmill.testing.conformance.parsers import tool_calls
from tokenmill.testing.conformance.policies import (
    admission,
    draft_length,
    observer,
    router,
    scheduler,
    scheduling_policy,
    speculator,
)
from tokenmill.testing.conformance.suites import checks_of

from ..core.plugin_packages import Packages

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/write-a-plugin.md").read_text()
RECIPES = "".join(page.read_text() for page in sorted((ROOT / "docs/plugins").glob("*.md")))
EXAMPLE = ROOT / "examples/plugin-shortest-job-first"
FILES = dict(re.findall(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)```$", TEXT, re.MULTILINE | re.DOTALL))
MODULES: list[str] = re.findall(r"^```python\n(.*?)```$", RECIPES, re.MULTILINE | re.DOTALL)
SETTINGS = re.search(r"```toml\n(\[scheduler\].*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^tokenmill .*$", TEXT + RECIPES, re.MULTILINE)


def recipe(part: str) -> str:
    """The only module of the recipes that has this part."""
    [found] = [code for code in MODULES if part in code]
    return found


def subjects(packages: Packages, code: str) -> dict[str, Subject]:
    """What a snippet brings, by kind, as an installed plugin."""
    packages.install("acme-snippet", code, header="")
    return {subject.kind: subject for subject in LoadedPlugin("acme-snippet").subjects()}


def test_every_file_is_that_of_the_example_and_none_is_left_out() -> None:
    written = {"README.md", *FILES}  # for the README a line is enough
    there = {str(path.relative_to(EXAMPLE)) for path in EXAMPLE.rglob("*.*") if path.is_file()}
    assert {name for name in there if "__pycache__" not in name} == written
    for name, text in FILES.items():
        assert (EXAMPLE / name).read_text() == text, name


def test_the_other_order_passes_the_kit(packages: Packages) -> None:
    subject = subjects(packages, recipe("registry.offer(kinds.SCHEDULING_POLICY, "))[
        "scheduling_policy"
    ]
    scheduling_policy.check_nobody_starves(subject.make)
    scheduling_policy.check_keys_are_tuples_of_numbers(subject.make)
    scheduling_policy.check_the_same_request_has_the_same_key(subject.make)


def test_the_draft_length_passes_the_kit(packages: Packages) -> None:
    subject = subjects(packages, recipe("registry.offer(kinds.DRAFT_LENGTH, "))["draft_length"]
    draft_length.check_nothing_is_kept_of_ended_requests(subject.make)
    for shape in DRAFTING_SHAPES:
        draft_length.check_an_engine_takes_its_answers(subject.make, shape)


def test_the_bare_hooks_pass_the_kit(packages: Packages) -> None:
    found = subjects(packages, recipe("def admit("))
    admission.check_it_never_raises(found["admission"].make)
    admission.check_refusals_say_why_and_for_how_long(found["admission"].make)
    observer.check_it_survives_every_event(found["observer"].make)


def test_the_wrapper_passes_the_kit(packages: Packages) -> None:
    subject = subjects(packages, recipe("wrapper=True"))["scheduler"]
    scheduler.check_nobody_starves(subject.make)
    for shape in SHAPES:
        scheduler.check_it_decides_every_step_itself(subject.make, shape)


def test_the_attention_backend_s_tests_run_where_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples/plugin-sdpa-attention"))
    found: dict[str, Any] = {}
    code = recipe("TestOnTheCPU")
    exec(code, found)
    suite = found["TestOnTheCPU"]
    assert issubclass(suite, AttentionConformance)
    assert "device" in vars(suite)


def test_the_router_passes_the_kit(packages: Packages) -> None:
    code = recipe("registry.offer(kinds.ROUTER, ")
    subject = subjects(packages, code)["router"]
    router.check_it_chooses_a_replica_that_serves(subject.make)
    router.check_it_uses_every_replica(subject.make)
    router.check_it_survives_the_loss_of_any_replica(subject.make)
    router.check_its_memory_has_a_limit(subject.make)


def test_the_executor_passes_the_kit_and_refuses_ranks(packages: Packages) -> None:
    code = recipe("kinds.DISTRIBUTED_EXECUTOR_BACKEND, ")
    provider: Any = subjects(packages, code)["distributed_executor_backend"].make()
    executors.check_it_describes_the_loaded_model(provider)
    executors.check_steps_are_computed_in_the_order_of_their_launch(provider)
    executors.check_a_step_that_raises_ends_only_its_own_requests(provider)
    executors.check_long_prompts_arrive_whole(provider)
    for options in ({"pipeline_parallel_size": 2}, {"cpu_bind": "0"}):
        assert len(provider.reasons_against(make_spec(EngineConfig.from_options(**options)))) == 1


def test_the_executor_records_the_steps_that_its_options_say(packages: Packages) -> None:
    code = recipe("kinds.DISTRIBUTED_EXECUTOR_BACKEND, ")
    packages.install("profiling", code, header="")
    table = "[distributed_executor_backend]\nuse = 'profiling'\nskip = 1\nsteps = 2\n"
    [subject] = LoadedPlugin("profiling", packages.write_settings(table)).subjects()
    provider: Any = subject.make()
    executor = provider(make_spec())
    executor.launch(prompt_plan("a", (1, 2, 3), 1)).result()
    for step_id in range(2, 7):
        executor.launch(decode_plan("a", step_id + 1, step_id)).result()
    executor.close()
    [file] = (packages.folder / "profile").iterdir()
    names = {event.get("name", "") for event in json.loads(file.read_text())["traceEvents"]}
    assert {name for name in names if name.startswith("step ")} == {"step 3", "step 4"}


def test_the_linear_backend_passes_the_kit(packages: Packages) -> None:
    code = recipe("registry.offer(kinds.LINEAR_BACKEND, ")
    backend: Any = subjects(packages, code)["linear_backend"].make()
    linear.check_reasons_and_kept_formats_are_returned_for_any_specification(backend, "cpu")
    linear.check_products_equal_the_reference(backend, True, "cpu")
    linear.check_kept_weights_are_multiplied_as_they_are(backend, "cpu")
    linear.check_segments_are_one_matrix_in_their_order(backend, "cpu")
    linear.check_gate_and_up_equal_the_reference(backend, "silu", "cpu")
    linear.check_a_head_returns_float32(backend, "cpu")


def test_the_logits_processor_passes_the_kit(packages: Packages) -> None:
    code = recipe("registry.offer(kinds.LOGITS_PROCESSOR, ")
    processor: Any = subjects(packages, code)["logits_processor"].make()
    logits.check_it_says_what_it_reads(processor)
    logits.check_arguments_are_accepted_or_refused_with_a_value_error(processor)
    logits.check_a_token_is_left_to_sample(processor)
    logits.check_rows_do_not_change_each_other(processor)
    logits.check_the_same_tokens_give_the_same_logits(processor)


def test_the_grammar_backend_passes_the_kit(packages: Packages) -> None:
    code = recipe("registry.offer(kinds.GRAMMAR_BACKEND, ")
    backend: Any = subjects(packages, code)["grammar_backend"].make()
    checks = list(checks_of(grammar))
    assert checks
    for check in checks:
        check(backend)


def test_the_media_processor_passes_the_kit(packages: Packages) -> None:
    code = recipe("registry.offer(kinds.MEDIA_PROCESSOR, ")
    processor: Any = subjects(packages, code)["media_processor"].make()
    checks = [check for check in checks_of(media) if "reported" not in check.__name__]
    assert checks
    for check in checks:
        check(processor)


def test_the_model_implementation_passes_the_kit(packages: Packages, tmp_path: Path) -> None:
    code = recipe("registry.offer(kinds.MODEL_IMPL, ")
    impl: Any = subjects(packages, code)["model_impl"].make()
    write("llama", tmp_path)
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "AcmeForCausalLM"))
    model.check_other_architectures_are_refused(impl, tmp_path)
    path = tmp_path / "model"
    model.check_every_layer_attends_once_and_sizes_are_as_configured(impl, tmp_path, path)
    model.check_chunks_of_a_prompt_equal_the_whole(impl, tmp_path, path)


def test_the_model_implementation_gets_gguf_files_of_its_architecture(
    packages: Packages, tmp_path: Path
) -> None:
    code = recipe("registry.offer(kinds.MODEL_IMPL, ")
    impl: Any = subjects(packages, code)["model_impl"].make()
    path = tmp_path / "m.gguf"
    write_gguf(path, random_checkpoint(CONFIG, 0), architecture="acme")
    assert "'acme', which is not supported" in NativeModels.reasons_against(describe(path))[0]
    model.check_chunks_of_a_prompt_equal_the_whole(impl, tmp_path, path)


def test_the_weight_format_passes_the_kit(packages: Packages, tmp_path: Path) -> None:
    code = recipe("registry.offer(kinds.WEIGHT_FORMAT, ")
    reader: Any = subjects(packages, code)["weight_format"].make()
    weight_format.check_settings_are_accepted_or_refused(reader)
    weight_format.check_absurd_settings_are_accepted_or_refused(reader)
    weight_format.check_one_tensor_marks_a_matrix(reader)
    weight_format.check_a_matrix_has_the_numbers_of_the_sample(reader)
    weight_format.check_parts_and_stacks_have_the_numbers_of_the_whole(reader)
    weight_format.check_equal_formats_are_equal(reader)
    weight_format.check_damaged_tensors_are_refused(reader)
    weight_format.check_a_directory_has_the_matrix(reader, tmp_path)


@pytest.mark.parametrize("name", ["phrases", "similar", "stock-phrases"])
def test_the_speculative_methods_pass_the_kit(name: str, packages: Packages) -> None:
    code = recipe(f'kinds.SPECULATIVE_METHOD, "{name}"')
    subject = subjects(packages, code)["speculative_method"]
    speculator.check_every_request_gets_one_draft(subject.make)
    speculator.check_no_draft_is_longer_than_asked(subject.make)
    speculator.check_each_request_gets_a_draft_of_its_own(subject.make)
    speculator.check_nothing_is_kept_of_ended_requests(subject.make)
    if name == "similar":
        speculator.check_hidden_states_are_not_kept(subject.make)


def test_the_options_are_understood(packages: Packages) -> None:
    assert SETTINGS is not None
    package = FILES["tokenmill_shortest_job_first/__init__.py"]
    scheduler = FILES["tokenmill_shortest_job_first/scheduler.py"]
    (packages.folder / "scheduler_of_tutorial.py").write_text(scheduler)
    code = package.replace("from .scheduler", "from scheduler_of_tutorial")
    packages.install("shortest-job-first", code, header="")
    packages.write_settings(SETTINGS[1])
    assert PluginHost.load(EngineConfig()).names["scheduler"] == "shortest-job-first"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists(command: str) -> None:
    make_parser().parse_args(shlex.split(command)[1:])


def test_the_tool_call_parser_finds_its_call(packages: Packages) -> None:
    code = recipe("registry.offer(kinds.TOOL_CALL_PARSER, ")
    parser = subjects(packages, code)["tool_call_parser"].make
    call = 'CALL{"name": "weather", "arguments": {"city": "Oslo"}}END'
    assert call in RECIPES
    tool_calls.check_its_own_answers_are_read(parser, [(call, [("weather", {"city": "Oslo"})])])
    tool_calls.check_cuts_change_nothing(parser, 1)
    packages.write_settings('[plugins]\nenable = ["acme-snippet"]\n')
    for source, expected in (("CALL{", "AcmeCalls"), ("", "GenericToolParser")):
        chosen = build_answer_parsers(EngineConfig(), ChatFormat(source=source)).tools
        assert type(chosen).__name__ == expected
