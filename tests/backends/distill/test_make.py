"""`tokenmill draft make` on a tiny model: what is written can be loaded, and has learned."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tokenmill import assembly
from tokenmill.api.cli import main
from tokenmill.assembly import build_parts, list_local_models, make_draft_model
from tokenmill.backends.distill.make import DraftRecipe, MadeDraft
from tokenmill.backends.distill.training import Acceptance
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.weights import draft_record
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.draft_vocabulary import read_draft_vocabulary
from tokenmill.backends.weights.files.safetensors_files import SafetensorsFiles
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress
from tokenmill.core.requests.sampling_params import SamplingParams

from ..drafting.drafts import serve
from ..tiny import make_prompt
from ..tiny_checkpoints import TARGET, write_model

PROMPTS = "\n".join(chr(ord("a") + i) * (i % 7 + 1) for i in range(26))
FAST = {"num_tokens": 1500, "num_steps": 30, "max_len": 32, "draft_vocab_size": 96}
KINDS = {"head": 0, "layers": 2}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target", TARGET, 1)


def make(target: Path, output: Path, **recipe: object) -> MadeDraft:
    config = EngineConfig(model=str(target), device="cpu", num_gpu_blocks_override=200)
    file = target.parent / "prompts.txt"
    file.write_text(PROMPTS)
    return make_draft_model(config, output, no_progress, prompts_file=file, **FAST | recipe)


@pytest.fixture(scope="module")
def drafts(
    target: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, MadeDraft]]:
    """One of each kind."""
    folder = tmp_path_factory.mktemp("drafts")
    return {
        kind: (folder / kind, make(target, folder / kind, num_layers=num_layers))
        for kind, num_layers in KINDS.items()
    }


@pytest.fixture(scope="module")
def made(drafts: dict[str, tuple[Path, MadeDraft]]) -> tuple[Path, MadeDraft]:
    return drafts["layers"]


@pytest.mark.parametrize("kind", KINDS)
def test_training_makes_more_drafts_acceptable(
    kind: str, drafts: dict[str, tuple[Path, MadeDraft]]
) -> None:
    _, result = drafts[kind]
    assert result.after.sampled > result.before.sampled
    assert result.after.num_measured > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_makes_the_same_draft(
    kind: str, target: Path, drafts: dict[str, tuple[Path, MadeDraft]], tmp_path: Path
) -> None:
    path, result = drafts[kind]
    again = make(target, tmp_path / "again", num_layers=KINDS[kind])
    assert again == result
    first, second = (SafetensorsFiles(one) for one in (path, tmp_path / "again"))
    for name in first.tensor_names():
        assert torch.equal(first.tensor(name), second.tensor(name))


def test_it_has_logits_for_the_commonest_tokens_alone(
    target: Path, made: tuple[Path, MadeDraft]
) -> None:
    checkpoint = open_checkpoint(made[0])
    whole = open_checkpoint(target).config
    assert checkpoint.config == replace(whole, num_layers=2, draft_vocab_size=96)
    token_ids = read_draft_vocabulary(checkpoint)
    assert token_ids is not None and len(token_ids.unique()) == 96
    assert checkpoint.tensor("lm_head.weight").shape == (96, TARGET.hidden_size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_it_drafts_for_its_target(
    dtype: str, kind: str, target: Path, drafts: dict[str, tuple[Path, MadeDraft]]
) -> None:
    params = [
        SamplingParams(temperature=temperature, seed=seed, top_k=top_k, max_tokens=24)
        for temperature, seed, top_k in ((0, None, 0), (0.7, 3, 0), (0.7, 4, 20), (0.7, None, 20))
    ]
    prompts = [make_prompt(9, i) for i in range(4)]
    options = {"num_gpu_blocks_override": 64, "dtype": dtype}
    served, expected = (
        serve(target, draft, prompts, params, **options) for draft in (drafts[kind][0], None)
    )
    assert served.num_drafts > 0
    if dtype == "float32":
        assert served.token_ids[:3] == expected.token_ids[:3]


def test_all_tokens_can_be_kept(target: Path, tmp_path: Path) -> None:
    make(target, tmp_path / "draft", draft_vocab_size=0, num_steps=2, num_layers=1)
    checkpoint = open_checkpoint(tmp_path / "draft")
    assert checkpoint.config == replace(open_checkpoint(target).config, num_layers=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_is_refused_as_a_target(
    kind: str, drafts: dict[str, tuple[Path, MadeDraft]]
) -> None:
    config = EngineConfig(model=str(drafts[kind][0]), device="cpu", num_gpu_blocks_override=8)
    with pytest.raises(ConfigError, match=r"a draft (model|head), .*--speculative-model"):
        build_parts(config, no_progress)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_is_not_a_number_is_left_out(
    kind: str, target: Path, tmp_path: Path
) -> None:
    tensors = load_file(target / "model.safetensors")
    tensors["model.embed_tokens.weight"][40] = torch.nan  # a byte of one prompt
    broken = tmp_path / "target"
    shutil.copytree(target, broken)
    save_file(tensors, broken / "model.safetensors")
    assert make(broken, tmp_path / "draft", num_layers=KINDS[kind], num_steps=1).after.num_measured


def test_nothing_is_overwritten(target: Path, tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="exists already and is not empty: name a new directory"):
        make(target, tmp_path / "draft")


def test_what_cannot_be_written_is_refused_before_any_work(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ModelExecutor, "from_checkpoint")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written to .*file.draft: .*Not a directory"):
        make(target, tmp_path / "file" / "draft")


def test_a_draft_must_be_smaller_than_its_target(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no smaller than the target, which has 3"):
        make(target, tmp_path / "draft", num_layers=3)


def test_prompts_must_leave_room_for_an_answer(target: Path, tmp_path: Path) -> None:
    config = EngineConfig(model=str(target), device="cpu", num_gpu_blocks_override=50)
    (tmp_path / "prompts.txt").write_text("a" * 50)
    with pytest.raises(ConfigError, match="no prompt has from 1 to 31 tokens"):
        make_draft_model(
            config,
            tmp_path / "draft",
            no_progress,
            prompts_file=tmp_path / "prompts.txt",
            max_len=32,
        )


def test_values_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="--layers must be at least 0, got -1"):
        DraftRecipe(num_layers=-1)


@pytest.mark.parametrize(
    ("flags", "told"),
    [((), "a draft head, 0.0 million parameters"), (("--layers", "1"), "layers 0, 0.0 million")],
    ids=KINDS,
)
def test_the_command_says_what_came_out(
    flags: tuple[str, ...],
    told: str,
    target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_record, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    command = ["draft", "make", str(tmp_path / "draft"), "--model", str(target)]
    command += ["--tokens", "300", "--steps", "2", "--draft-vocab-size", "64", *flags]
    command += ["--prompts", str(tmp_path / "prompts.txt"), "--device", "cpu"]
    command += ["--num-gpu-blocks-override", "100"]
    assert main(command) == 0
    out = capsys.readouterr()
    assert told in out.out
    assert "accepted drafts of one token, on" in out.out and "at temperature 0.7" in out.out
    assert out.err.count("generating the target's text: done") == 1
    assert out.err.count("training the draft model: done") == 1
    modes = {path.stat().st_mode for path in (tmp_path / "draft").iterdir()}
    assert len(modes) == 1, "who may read one of its files may read all"
    (listed,) = [one for one in list_local_models() if one.kind == "draft"]
    assert listed.path == str(tmp_path / "draft")
    assert listed.format == ("1-layer" if flags else "head")


def test_the_command_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acceptance = Acceptance(num_measured=1000, sampled=0.5, greedy=0.25)
    made = MadeDraft(num_parameters=7, layers=(), before=acceptance, after=acceptance)
    monkeypatch.setattr(assembly, "make_draft_model", lambda *_, **__: made)
    monkeypatch.setattr(assembly, "record_draft", lambda folder: None)
    assert main(["draft", "make", str(tmp_path / "draft"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["num_parameters"] == 7 and printed["after"]["greedy"] == 0.25
