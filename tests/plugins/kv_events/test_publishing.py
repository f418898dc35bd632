"""KV events of a real engine on the simulated executor, as consumers receive them."""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.core.engines import Bench
from tests.plugins.samples import started
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.metrics import PluginMetrics
from tokenmill.core.contract.registry import PluginContext
from tokenmill.core.engine.blocks.pool import BlockPool, hash_block
from tokenmill.core.errors import ConfigError
from tokenmill.plugins.observers.kv_events import make_kv_events
from tokenmill.plugins.observers.kv_events.observer import KVEvents
from tokenmill.plugins.observers.kv_events.wire import short_hash

from .consumer import Consumer

SOAK = (pytest.mark.soak, pytest.mark.timeout(3600))
WINDOWS: tuple[tuple[int | None, ...], ...] = ((None,), (None, 16))


@pytest.fixture
def folder() -> Iterator[Path]:
    """For sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def endpoints(folder: Path) -> dict[str, str]:
    return {"endpoint": f"ipc://{folder}/e", "replay_endpoint": f"ipc://{folder}/r"}


def make(settings: dict[str, Any], **context: Any) -> KVEvents:
    config = EngineConfig(kv_events_config={"enable_kv_cache_events": True, **settings})
    made = make_kv_events(PluginContext(config=config, **context))
    assert made is not None
    return made


@contextmanager
def open_events(events: KVEvents) -> Iterator[None]:
    """Run the lifespan as an engine does, on another thread."""
    loop = asyncio.new_event_loop()
    lifespan: AbstractAsyncContextManager[None] = events.lifespan(None)  # type: ignore[arg-type]
    try:
        loop.run_until_complete(lifespan.__aenter__())
        try:
            yield
        finally:
            loop.run_until_complete(lifespan.__aexit__(None, None, None))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def serve(bench: Bench, rng: random.Random, num_requests: int) -> None:
    """Random requests with common beginnings, salts, several choices and aborts."""
    stems = [[rng.randrange(1000) for _ in range(40)] for _ in range(6)]
    to_come = num_requests
    while to_come or bench.core.has_work:
        if to_come and rng.random() < 0.5:
            to_come -= 1
            stem = rng.choice(stems)
            prompt = stem[: rng.randint(1, 40)] + [rng.randrange(1000) for _ in range(4)]
            added = bench.add(
                prompt,
                rng.randint(1, 12),
                n=rng.choice([1, 1, 3]),
                salt=rng.choice(["", "", "pepper"]),
            )
            if rng.random() < 0.1:
                bench.core.abort(added[0].engine_id, bench.now)
        bench.step()


def check_index(consumer: Consumer, pool: BlockPool) -> None:
    """The consumer's index has the blocks of the pool, with their tokens and parents."""
    whole = {short_hash(key[:32]): key[:32] for key in pool.prefix_cache_keys}
    right = {(short_hash(key[:32]), key[32] if key[32:] else 0) for key in pool.prefix_cache_keys}
    assert consumer.blocks.keys() == right
    num_linked = 0
    for (one, group), (parent, tokens) in consumer.blocks.items():
        assert pool.find(whole[one], tokens, group) is not None
        if parent in whole:
            num_linked += 1
            assert hash_block(whole[parent], tokens) == whole[one]
    assert num_linked


@pytest.mark.parametrize("windows", WINDOWS, ids=["full", "sliding"])
@pytest.mark.parametrize("num_requests", [1000, pytest.param(10_000, marks=SOAK)])
def test_an_index_made_of_the_events_equals_the_prefix_cache(
    num_requests: int, windows: tuple[int | None, ...], endpoints: dict[str, str]
) -> None:
    events = make({**endpoints, "buffer_steps": 100 * num_requests})
    bench = Bench(
        num_blocks=48,
        kv_windows=windows,
        max_inflight=2,
        plugins=[events],
        step_log_size=0,
    )
    rng = random.Random(7)
    with open_events(events), Consumer(**endpoints) as live, Consumer(**endpoints) as absent_minded:
        events.on_started(started(windows=windows))
        for part in range(4):
            serve(bench, rng, num_requests // 4)
            live.catch_up(events.num_batches)
            check_index(live, bench.core.pool)
            if part == 0:
                absent_minded.look_away()
            if part == 2:
                absent_minded.look_again()
        absent_minded.catch_up(events.num_batches)
        check_index(absent_minded, bench.core.pool)
        with Consumer(**endpoints) as late:
            late.catch_up(events.num_batches)
            check_index(late, bench.core.pool)
        assert absent_minded.num_replayed and late.num_replayed == events.num_batches
        assert live.kinds[0] == "AllBlocksCleared" and live.kinds.count("BlockRemoved") > 100
        assert live.ranks == {0}
        assert live.extra_keys and all(keys == ["pepper"] for keys in live.extra_keys)
    bench.check_tokens()


def test_a_reset_clears_the_index_unless_a_request_holds_blocks(
    endpoints: dict[str, str],
) -> None:
    events = make(endpoints)
    bench = Bench(plugins=[events])
    with open_events(events), Consumer(**endpoints) as consumer:
        events.on_started(started())
        bench.add([1, 2, 3, 4, 5, 6, 7, 8], 1)
        bench.run()
        bench.add([9, 8, 7, 6, 5], 8)
        bench.step()
        assert not bench.core.reset_prefix_cache()
        consumer.catch_up(events.num_batches)
        assert consumer.kinds[-1] == "BlockRemoved"
        assert [tokens for _, tokens in consumer.blocks.values()] == [(9, 8, 7, 6)]
        bench.run()
        assert bench.core.reset_prefix_cache()
        consumer.catch_up(events.num_batches)
        assert consumer.kinds[-1] == "AllBlocksCleared" and not consumer.blocks


def test_a_consumer_that_reads_nothing_costs_no_step_and_no_other_consumer_a_batch(
    endpoints: dict[str, str],
) -> None:
    metrics = PluginMetrics()
    events = make({**endpoints, "hwm": 1}, metrics=metrics)
    bench = Bench(num_blocks=400, plugins=[events], step_log_size=0)
    rng = random.Random(7)
    with (
        open_events(events),
        Consumer(endpoints["endpoint"], hwm=1),
        Consumer(**endpoints) as reading,
    ):
        events.on_started(started())
        lost = 0.0
        while not lost:
            for _ in range(10):
                bench.add([rng.randrange(1000) for _ in range(1000)], 1)
            bench.run()
            reading.catch_up(events.num_batches)
            lost = dropped(metrics)["consumer"]
        check_index(reading, bench.core.pool)
    assert dropped(metrics)["queue"] == 0
    bench.check_tokens()


def dropped(metrics: PluginMetrics) -> dict[str, float]:
    """Dropped batches by the place that dropped them."""
    [family] = metrics.collect()
    return {sample.labels["where"]: sample.value for sample in family.samples}


def test_a_full_queue_drops_batches_whose_numbers_are_missing(endpoints: dict[str, str]) -> None:
    metrics = PluginMetrics()
    events = make({**endpoints, "max_queue_size": 2}, metrics=metrics)
    for _ in range(5):  # nothing takes them: it is not open yet
        events.on_started(started())
    assert dropped(metrics) == {"queue": 3, "consumer": 0}
    with open_events(events), Consumer(**endpoints) as consumer:
        consumer.catch_up(2)
        events.on_started(started())
        consumer.catch_up(6)
        assert consumer.kinds == ["AllBlocksCleared"] * 3  # 0, 1 and 5


def test_only_the_last_batches_are_sent_again(endpoints: dict[str, str]) -> None:
    events = make({**endpoints, "buffer_steps": 3})
    with open_events(events), Consumer(**endpoints) as live, Consumer(**endpoints) as late:
        for _ in range(10):
            events.on_started(started())
        live.catch_up(10)
        late.look_away()
        late.replay()
        assert (late.next, late.num_replayed) == (10, 3)


def test_the_topic_goes_before_each_batch(endpoints: dict[str, str]) -> None:
    events = make({**endpoints, "topic": "kv@pod-1@model"})
    with open_events(events), Consumer(**endpoints, topic="kv@pod-1@model") as consumer:
        events.on_started(started())
        consumer.catch_up(1)
        assert consumer.kinds == ["AllBlocksCleared"]


def test_the_last_batches_come_although_the_engine_closes(endpoints: dict[str, str]) -> None:
    events = make(endpoints)
    with Consumer(endpoints["endpoint"]) as consumer:
        with open_events(events):
            while not consumer.receive_all():
                events.on_started(started())
            for _ in range(50):
                events.on_started(started())
        consumer.catch_up(events.num_batches)


def test_an_endpoint_in_use_ends_the_start_with_its_name(endpoints: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for settings in ({"endpoint": address}, {**endpoints, "replay_endpoint": address}):
            num_threads = threading.active_count()
            with (
                pytest.raises(ConfigError, match=f"cannot listen at {address}: Address already"),
                open_events(make(settings)),
            ):
                pass
            assert threading.active_count() == num_threads


def test_an_endpoint_of_another_host_is_connected_to() -> None:
    """A collector that listens for many engines. "0" is this host, in a form that is not bound."""
    import zmq

    with zmq.Context() as zmq_context, zmq_context.socket(zmq.SUB) as collector:
        port = collector.bind_to_random_port("tcp://127.0.0.1")
        collector.setsockopt(zmq.SUBSCRIBE, b"")
        events = make({"endpoint": f"tcp://0:{port}"})
        with open_events(events):
            while not collector.poll(100):
                events.on_started(started())
        assert len(collector.recv_multipart()) == 3


def test_without_prefix_caching_there_are_no_events(endpoints: dict[str, str]) -> None:
    events = make(endpoints)
    bench = Bench(plugins=[events], enable_prefix_caching=False)
    bench.add(range(20), 4, n=3)
    bench.run()
    assert events.num_batches == 0
