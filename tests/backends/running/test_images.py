"""Steps with images, in plans made by hand, compared with transformers' own greedy tokens."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.backends.chosen import backends_of
from tests.backends.tiny import GREEDY, Driver
from tests.backends.vision.tiny_models import CLASSES, PLACEHOLDER, TinyModel, picture, write_model
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.running.image_model import ImageModel, ImageStep
from tokenmill.backends.running.runner import ModelRunner
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import no_progress
from tokenmill.core.plan import BlockCopies, CopyDirection, MediaWork, StepPlan
from tokenmill.core.requests.media import MediaItem, MediaPlace

NUM_TOKENS = 12
BLOCK_SIZE = 8
NUM_BLOCKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A prompt with images, and transformers' answer."""

    token_ids: tuple[int, ...]
    items: tuple[MediaItem, ...]
    answer: tuple[int, ...]


def make_case(model: TinyModel, seed: int, num_images: int) -> Case:
    """Images of a few that all cases share, at random places, also side by side and first."""
    rng = random.Random(seed)
    token_ids: list[int] = []
    items, images = [], []
    for _ in range(num_images):
        token_ids += rng.choices(range(1, 400), k=rng.randint(0, 9))
        images.append(picture(model.side, rng.randrange(4)))
        data = images[-1].numpy().tobytes()
        item = MediaItem(
            digest=hashlib.sha256(data).digest(),
            start=len(token_ids),
            num_tokens=model.tokens_of(model.side),
            cost=5,
            shape=tuple(images[-1].shape),
            pixels=data,
        )
        items.append(item)
        token_ids += [PLACEHOLDER] * item.num_tokens
    token_ids += rng.choices(range(1, 400), k=rng.randint(1, 9))
    return Case(
        token_ids=tuple(token_ids),
        items=tuple(items),
        answer=model.generate(token_ids, images, NUM_TOKENS),
    )


class Images:
    """A driver whose plans encode the items of their grants, and release and evict those of
    requests that end."""

    def __init__(self, executor: ModelExecutor) -> None:
        self.driver = Driver(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
        runner = executor._runner
        assert isinstance(runner, ModelRunner)
        self.executor, self.driver.runner = executor, runner
        self.encoded: set[bytes] = set()
        self._cases: dict[str, Case] = {}
        self._gone: list[Case] = []

    def add(
        self, name: str, case: Case, answer: Sequence[int] = (), *, cached: Sequence[int] = ()
    ) -> None:
        """Start a request that has this part of its answer, and these blocks of its tokens."""
        self.executor.take_media(case.items)
        places = tuple(
            MediaPlace(digest=one.digest, start=one.start, num_tokens=one.num_tokens)
            for one in case.items
        )
        self.driver.add(
            name,
            [*case.token_ids, *answer],
            GREEDY,
            num_prompt_tokens=len(case.token_ids),
            num_cached_tokens=len(cached) * BLOCK_SIZE,
            cached_blocks=cached,
        )
        self.driver.starts[-1] = replace(self.driver.starts[-1], media=places)
        self._cases[name] = case

    def end(self, name: str) -> None:
        self.driver.end(name)
        self._gone.append(self._cases.pop(name))

    def plan(
        self, amounts: Mapping[str, int | None], copies: tuple[BlockCopies, ...] = ()
    ) -> StepPlan:
        plan = self.driver.plan(amounts, copies)
        release = tuple(item.digest for case in self._gone for item in case.items)
        held = {item.digest for case in self._cases.values() for item in case.items}
        evict = tuple(self.encoded & set(release) - held)
        self.encoded -= set(evict)
        needed = [
            item.digest
            for grant in plan.grants
            for item in self._cases[grant.engine_id].items
            if item.start < grant.start + grant.num_tokens and grant.start < item.end
        ]
        encode = tuple(digest for digest in dict.fromkeys(needed) if digest not in self.encoded)
        self.encoded |= set(encode)
        self._gone = []
        work = MediaWork(evict=evict, release=release, encode=encode)
        return replace(plan, media=work if evict or release or encode else None)

    def step(self, amounts: Mapping[str, int | None]) -> None:
        self.driver.run(self.plan(amounts))

    def generate(self, name: str, num_tokens: int = NUM_TOKENS) -> tuple[int, ...]:
        """Compute the rest of the prompt, then decode the given number of tokens."""
        while len(self.answer(name)) < num_tokens:
            self.step({name: None})
        return self.answer(name)

    def answer(self, name: str) -> tuple[int, ...]:
        return tuple(self.driver.known[name][len(self._cases[name].token_ids) :])


@pytest.fixture(scope="module", params=CLASSES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_model(tmp_path_factory.mktemp("images"), request.param)


@pytest.fixture(scope="module")
def cases(model: TinyModel) -> list[Case]:
    return [make_case(model, seed, seed % 4) for seed in range(12)]


@pytest.fixture(scope="module", params=["cpu", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    """With the first, steps without images are one native call."""
    return str(request.param)


@pytest.fixture
def images(model: TinyModel, backend: str) -> Iterator[Images]:
    executor = load(model.path, backend)
    yield Images(executor)
    executor.close()


def load(path: Path, backend: str) -> ModelExecutor:
    config = EngineConfig(
        device="cpu",
        dtype="float32",
        attention_backend=backend,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=NUM_BLOCKS,
        swap_space=0.01,
    )
    return ModelExecutor.from_checkpoint(
        open_checkpoint(path),
        config,
        backends_of(PluginHost.load(config)),
        no_progress,
        swaps=True,
        reads_images=True,
    )


def test_whole_prompts(images: Images, cases: list[Case]) -> None:
    for number, case in enumerate(cases):
        images.add(str(number), case)
        assert images.generate(str(number)) == case.answer
        images.end(str(number))


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_cut_images(images: Images, cases: list[Case], chunk: int) -> None:
    for number, case in enumerate(cases[:4]):
        images.add(str(number), case)
        for _ in range((len(case.token_ids) - 1) // chunk):
            images.step({str(number): chunk})
        assert images.generate(str(number)) == case.answer


def test_mixed_steps(images: Images, cases: list[Case]) -> None:
    """Prompts with and without images, chunks, and decodes, in random order."""
    rng, left, running = random.Random(1), list(enumerate(cases)), dict[str, Case]()
    while left or running:
        if left and len(running) < 5:
            number, case = left.pop()
            images.add(str(number), case)
            running[str(number)] = case
        amounts = {}
        for name in rng.sample(sorted(running), len(running)):
            known = len(images.driver.known[name])
            uncomputed = known - images.driver.computed[name]
            amounts[name] = rng.choice((None, rng.randint(1, uncomputed)))
        images.step(amounts)
        for name, case in list(running.items()):
            if len(images.answer(name)) == NUM_TOKENS:
                assert images.answer(name) == case.answer
                images.end(name)
                del running[name]


def test_cached_blocks_end_within_an_image(images: Images, cases: list[Case]) -> None:
    """A request that finds only the first block of an image in the cache computes the rest."""
    assert any(cut_by_blocks(case) for case in cases)
    for number, case in enumerate(filter(cut_by_blocks, cases)):
        images.add(f"{number}-first", case)
        images.generate(f"{number}-first", 1)
        blocks = list(images.driver.blocks[f"{number}-first"])
        for num_cached in range(1, (len(case.token_ids) - 1) // BLOCK_SIZE + 1):
            name = f"{number}-{num_cached}"
            images.add(name, case, cached=blocks[:num_cached])
            assert images.generate(name) == case.answer
            del images.driver.blocks[name][:num_cached]  # the first request's
            images.end(name)
        images.end(f"{number}-first")


def cut_by_blocks(case: Case) -> bool:
    return any(item.start // BLOCK_SIZE != (item.end - 1) // BLOCK_SIZE for item in case.items)


def test_recomputation_covers_prompt_and_answer(images: Images, cases: list[Case]) -> None:
    for number, case in enumerate(cases[:8]):
        name = str(number)
        images.add(name, case)
        begin = images.generate(name, 5)
        images.end(name)
        images.add(name, case, begin)
        images.step({name: 7} if number % 2 else {name: None})
        assert images.generate(name) == case.answer


def test_blocks_with_images_are_swapped(images: Images, cases: list[Case]) -> None:
    case = cases[3]
    images.add("a", case)
    images.generate("a", 3)
    blocks = images.driver.blocks["a"]
    out = tuple((block, host) for host, block in enumerate(blocks))
    images.add("other", cases[1])
    images.driver.run(
        images.plan({"other": None}, (BlockCopies(direction=CopyDirection.OUT, pairs=out),))
    )
    back = tuple((host, block) for block, host in out)
    into = (BlockCopies(direction=CopyDirection.IN, pairs=back),)
    images.driver.run(images.plan({"a": None}, into))
    assert images.generate("a") == case.answer


def test_an_evicted_image_is_encoded_again(images: Images, cases: list[Case]) -> None:
    case = cases[2]
    for name in ("a", "b"):
        images.add(name, case)
        images.step({name: None})
        assert images.encoded == {item.digest for item in case.items}
        images.end(name)
        images.add(f"{name}-text", cases[0])
        images.step({f"{name}-text": None})
        assert not images.encoded
    images.add("c", case)
    assert images.generate("c") == case.answer


def test_a_sampled_placeholder_is_no_image(
    images: Images, model: TinyModel, cases: list[Case]
) -> None:
    """Only places in the prompt have rows, also when the answer is computed again."""
    case = cases[1]
    answer = (PLACEHOLDER, *case.answer[:2])
    pictures = [
        torch.frombuffer(bytearray(item.pixels), dtype=torch.uint8).view(item.shape)
        for item in case.items
    ]
    images.add("a", case, answer)
    found = images.generate("a", len(answer) + 5)[len(answer) :]
    assert found == continue_after(model, case, pictures, answer, 5)


def continue_after(
    model: TinyModel,
    case: Case,
    pictures: Sequence[torch.Tensor],
    answer: Sequence[int],
    num_tokens: int,
) -> tuple[int, ...]:
    """transformers would put rows into all placeholders, so it gets embeddings."""
    embed = model.model.get_input_embeddings()
    token_ids = [*case.token_ids, *answer]
    with torch.no_grad():
        hidden_te = embed(torch.tensor(token_ids))
        for item, pixels in zip(case.items, pictures, strict=True):
            hidden_te[item.start : item.end] = model.rows(pixels)
        for _ in range(num_tokens):
            text = model.model.model.text_model(inputs_embeds=hidden_te[None]).last_hidden_state
            token_ids.append(int(model.model.lm_head(text[0, -1]).argmax()))
            hidden_te = torch.cat([hidden_te, embed(torch.tensor(token_ids[-1:]))])
    return tuple(token_ids[-num_tokens:])


def test_an_encoder_that_raises_loses_only_the_requests_of_its_step(
    images: Images, cases: list[Case]
) -> None:
    images.add("lives", cases[0])
    images.step({"lives": None})
    images.add("fails", cases[1])
    plan = images.plan({"fails": None})
    assert plan.media is not None and plan.media.encode
    short = replace(cases[1].items[0], num_tokens=3)
    images.executor.take_media([short])  # taken last, so it is what the plan encodes
    with pytest.raises(ValueError, match="4 rows and 3 tokens"):
        images.driver.run(plan)
    assert images.generate("lives") == cases[0].answer
    images.driver.end("fails")
    images.encoded.clear()
    images.executor.take_media(cases[1].items)
    images.add("again", cases[1])
    assert images.generate("again") == cases[1].answer


def test_only_steps_with_images_begin_with_hidden_states(
    images: Images, cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    logits = ImageModel.logits

    def counted(self: ImageModel, step: ImageStep) -> torch.Tensor:
        computed.append(len(step.rows))
        return logits(self, step)

    monkeypatch.setattr(ImageModel, "logits", counted)
    images.add("a", cases[3])
    images.generate("a")
    assert computed == [3]  # the three images of the prompt, in its one step
