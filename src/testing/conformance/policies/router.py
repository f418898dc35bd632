"""The suite for routers, which choose the replica of each request."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pytest

from ....core.contract.client import Load
from ....core.contract.providers.routing import ReplicaView, Router
from ....core.engine.blocks.pool import hash_chain, hash_root
from ....core.members import IS_DETERMINISTIC
from ....core.requests.request_options import RequestOptions
from ..hosting import fresh
from ..kept_memory import check_nothing_is_kept
from ..reporting import Report, report_time
from ..suites import suite

_BLOCK_SIZE = 16
_NUM_BLOCKS = 64
_NUM_REPLICAS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """A RoutedRequest."""

    prompt_token_ids: tuple[int, ...]
    block_hashes: Sequence[bytes]
    options: RequestOptions
    block_size: int = _BLOCK_SIZE


def check_it_chooses_a_replica_that_serves(router: object) -> None:
    """The answer is the index of one of the replicas that serve, also if only some do."""
    one, rng = _made(router), random.Random(1)
    for number in range(200):
        serving = sorted(rng.sample(range(_NUM_REPLICAS), rng.randint(1, _NUM_REPLICAS)))
        chosen = one.route(_request(rng, number), _views(serving, rng))
        assert chosen in serving, f"the replicas {serving} serve, the answer is {chosen!r}"


def check_it_uses_every_replica(router: object) -> None:
    """Different requests that run at the same time do not all go to the same replicas."""
    one, rng = _made(router), random.Random(2)
    counts = Counter(dict.fromkeys(range(_NUM_REPLICAS), 0))
    for number in range(60):
        counts[one.route(_request(rng, number), _views(range(_NUM_REPLICAS), counts))] += 1
    idle = [index for index, count in sorted(counts.items()) if not count]
    assert not idle, f"of 60 requests the replicas {idle} got none"


def check_it_survives_the_loss_of_any_replica(router: object) -> None:
    """`forget` takes replicas that got requests, got none, or were lost before."""
    one, rng = _made(router), random.Random(3)
    for number in range(50):
        one.forget(rng.randrange(_NUM_REPLICAS + 1))
        one.route(_request(rng, number), _views(range(_NUM_REPLICAS), rng))


def check_its_memory_has_a_limit(router: object) -> None:
    """A server may route requests for months, so a router's memory must be bounded."""
    one, rng = _made(router), random.Random(4)

    def live(name: str, number: int) -> None:
        views = _views(range(_NUM_REPLICAS), rng)
        one.route(_request(rng, number, session=name), views)

    for number in range(300):  # first fill the router's records up to their limit
        live(f"first-{number}", number)
    check_nothing_is_kept(one, live)


def check_it_is_deterministic(router: object) -> None:
    """The same requests and loads lead to the same answers."""
    if not IS_DETERMINISTIC.of(fresh(router)):
        pytest.skip("is_deterministic is False")
    first, second = _answers(_made(router)), _answers(_made(router))
    assert first == second, "two runs with the same requests differ"


def check_time_is_reported(router: object, report: Report) -> None:
    """Report how long `route` takes for a prompt of 4,096 tokens. There is no limit."""
    one, rng = _made(router), random.Random(6)
    seconds = []
    for number in range(50):
        routed, views = _request(rng, number, num_blocks=256), _views(range(8), rng)
        began = time.perf_counter()
        one.route(routed, views)
        seconds.append(time.perf_counter() - began)
    report_time(report, "route()", statistics.median(seconds))


@suite
class RouterConformance:
    """The suite for a router.

    Subclass it as Test..., with a fixture `router` that returns a router, or a function that makes
    one.
    """


def _made(given: object) -> Router:
    return cast(Router, fresh(given))


def _answers(router: Router) -> list[int]:
    rng, counts = random.Random(5), Counter[int]()
    found = []
    for number in range(100):
        chosen = router.route(_request(rng, number), _views(range(_NUM_REPLICAS), counts))
        counts[chosen] += 1
        found.append(chosen)
    return found


def _request(
    rng: random.Random, number: int, *, session: str | None = None, num_blocks: int = 4
) -> SampleRequest:
    """A request of which the first half is one of five beginnings; every third has a session, or
    has the given one."""
    start, rest = rng.randrange(5), rng.randint(0, _BLOCK_SIZE - 1)
    half = num_blocks * _BLOCK_SIZE // 2
    ids = (start,) * half + tuple(rng.randrange(9) for _ in range(half + rest))
    return SampleRequest(
        prompt_token_ids=ids,
        block_hashes=hash_chain(hash_root("sample"), ids, _BLOCK_SIZE),
        options=RequestOptions(
            session_id=session or (f"session {number % 7}" if number % 3 == 0 else None),
            user=rng.choice([None, "somebody"]),
            priority=rng.choice([0, -1]),
        ),
    )


def _views(
    indexes: Sequence[int], busy: random.Random | Mapping[int, int]
) -> tuple[ReplicaView, ...]:
    """Replicas, with random numbers of requests or the given ones."""

    def number_of(index: int) -> int:
        return busy.randint(0, 5) if isinstance(busy, random.Random) else busy[index]

    return tuple(_view(index, number_of(index)) for index in indexes)


def _view(index: int, num_requests: int) -> ReplicaView:
    load = Load(
        num_running=num_requests,
        num_waiting=0,
        kv_cache_usage=min(1.0, num_requests / 20),
        stalled_for=0.0,
        is_alive=True,
        is_draining=False,
    )
    return ReplicaView(index=index, num_requests=num_requests, num_blocks=_NUM_BLOCKS, load=load)
