"""How the built-in routers choose among replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tokenmill.core.requests.request_options import RequestOptions
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.checking import check_ids
from tokenmill.core.supervised.link import IDLE
from tokenmill.core.supervised.routing import Routed
from tokenmill.plugin import ReplicaView, RoutedRequest
from tokenmill.plugins.routers.least_loaded import LeastLoaded
from tokenmill.plugins.routers.prefix_aware import PrefixAware, PrefixAwareOptions
from tokenmill.plugins.routers.round_robin import RoundRobin
from tokenmill.plugins.routers.session import SessionAffinity
from tokenmill.testing.simulated.executor import SimulatedExecutor

INFO = SimulatedExecutor(num_blocks=64, block_size=4).info


def replica(index: int, num_requests: int = 0, *, num_blocks: int = 100) -> ReplicaView:
    return ReplicaView(index=index, num_requests=num_requests, num_blocks=num_blocks, load=IDLE)


def request(
    ids: Sequence[int] = (1, 2, 3), *, is_hashed: bool = True, **options: str
) -> RoutedRequest:
    """A request over blocks of 4 tokens."""
    given = RequestOptions(**options)  # type: ignore[arg-type]
    request = check_ids(
        ids, SamplingParams(), given, vocab_size=INFO.vocab_size, max_model_len=1 << 16
    )
    return Routed(request, INFO, is_hashed=is_hashed)


def prefix_aware(tokens_per_request: int = 8) -> PrefixAware:
    return PrefixAware(PrefixAwareOptions(tokens_per_request=tokens_per_request))


def test_round_robin_goes_on_after_the_last_replica_and_leaves_out_lost_ones() -> None:
    router = RoundRobin()
    all_three = [replica(0), replica(1), replica(2)]
    assert [router.route(request(), all_three) for _ in range(4)] == [0, 1, 2, 0]
    without_one = [replica(0), replica(2)]
    assert [router.route(request(), without_one) for _ in range(3)] == [2, 0, 2]


def test_least_loaded_goes_where_the_fewest_requests_are() -> None:
    assert LeastLoaded().route(request(), [replica(0, 3), replica(2, 1), replica(3, 1)]) == 2


def test_a_session_stays_and_only_a_lost_replica_s_sessions_move() -> None:
    router, three = SessionAffinity(), [replica(0), replica(1), replica(2)]
    places = {f"s{i}": router.route(request(session_id=f"s{i}"), three) for i in range(60)}
    assert set(Counter(places.values())) == {0, 1, 2}
    for session, place in places.items():
        assert router.route(request(session_id=session), three) == place
        found = router.route(request(session_id=session), [replica(0), replica(2)])
        assert found == place if place != 1 else found in (0, 2)


def test_without_a_session_the_load_decides() -> None:
    assert SessionAffinity().route(request(), [replica(0, 2), replica(1, 1)]) == 1


def test_a_known_beginning_goes_to_its_replica() -> None:
    router, start = prefix_aware(), list(range(16))
    assert router.route(request([*start, 90]), [replica(0, 1), replica(1)]) == 1
    assert router.route(request([*start, 91]), [replica(0), replica(1)]) == 1
    assert router.route(request([*range(50, 66), 91]), [replica(0), replica(1, 1)]) == 0


def test_the_longest_known_beginning_wins() -> None:
    router, start = prefix_aware(), list(range(32))
    router.route(request(start[:16]), [replica(0)])
    router.route(request(start[:24]), [replica(1)])
    assert router.route(request(start), [replica(0), replica(1)]) == 1


def test_load_outweighs_a_known_beginning_in_the_end() -> None:
    router, start = prefix_aware(tokens_per_request=8), list(range(16))
    router.route(request(start), [replica(1)])
    assert router.route(request(start), [replica(0), replica(1, 1)]) == 1
    assert router.route(request(start), [replica(0), replica(1, 3)]) == 0


def test_a_lost_replica_s_cache_is_forgotten() -> None:
    router, start = prefix_aware(), list(range(16))
    router.route(request(start), [replica(1)])
    router.forget(1)
    assert router.route(request(start), [replica(0), replica(1)]) == 0


def test_beginnings_that_a_replica_cannot_hold_any_more_are_forgotten() -> None:
    router, start = prefix_aware(), list(range(16))
    small = replica(1, num_blocks=6)
    router.route(request(start), [small])
    router.route(request(list(range(100, 112))), [small])  # three blocks more: one is too much
    assert router.route(request(start), [replica(0, 1), small]) == 1, "the beginning of it is there"
    router.route(request(list(range(200, 224))), [small])
    assert router.route(request(start), [replica(0), replica(1, num_blocks=6)]) == 0


@pytest.mark.parametrize("options", [{"is_hashed": False}, {"cache_salt": "other"}])
def test_what_an_engine_would_not_share_counts_as_unknown(options: dict[str, object]) -> None:
    router, start = prefix_aware(), list(range(16))
    router.route(request(start), [replica(1)])
    other = request(start, **options)  # type: ignore[arg-type]
    assert router.route(other, [replica(0), replica(1)]) == 0
