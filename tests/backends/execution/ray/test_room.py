"""Why a Ray cluster has no room."""

from __future__ import annotations

from tokenmill.backends.execution.ray.room import Room, describe_lack

SMALL = Room(address="10.0.0.1", free={"CPU": 2, "memory": 3 << 30})
LARGE = Room(address="10.0.0.2", free={"CPU": 8, "GPU": 1, "memory": 1.5 * (1 << 30)})


def test_free_resources_are_named_by_node_and_too_small_nodes_are_the_reason() -> None:
    found = describe_lack("2 stages", {"CPU": 3}, "SPREAD", [SMALL, SMALL])
    assert found == (
        "the Ray cluster has no room for 2 stages with 3 CPU each, placed by SPREAD, and no single "
        "node has 3 CPU free. Free: 10.0.0.1 has 2 CPU, 0 GPU and 3.0 GiB; "
        "10.0.0.1 has 2 CPU, 0 GPU and 3.0 GiB"
    )


def test_nodes_that_are_large_enough_are_not_called_too_small() -> None:
    wanted = {"CPU": 3, "GPU": 1}
    assert "no single node" not in describe_lack("2 stages", wanted, "SPREAD", [SMALL, LARGE])
    assert "no single node" in describe_lack("2 stages", wanted | {"GPU": 2}, "SPREAD", [LARGE])
