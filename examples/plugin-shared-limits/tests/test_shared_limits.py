"""The conformance kit, without a store and with one."""

from collections.abc import Callable
from functools import partial

import pytest
from limits_store import StoreProcess
from tokenmill_shared_limits.admission import SharedLimits
from tokenmill_shared_limits.options import SharedLimitsOptions

from tokenmill import EngineConfig
from tokenmill.plugin import PluginContext
from tokenmill.testing import AdmissionConformance, ObserverConformance, PackageConformance

LIMITS = {"requests_per_minute": 5, "tokens_per_minute": 500, "max_concurrent_requests": 4}


def make(options: SharedLimitsOptions) -> SharedLimits:
    return SharedLimits(PluginContext(config=EngineConfig()), options)


@pytest.fixture(params=["open", "closed"])
def lost(request: pytest.FixtureRequest) -> Callable[[], SharedLimits]:
    """Makes admissions whose store is away."""
    options = SharedLimitsOptions(
        url="unix:///nowhere/store.sock", on_store_lost=request.param, **LIMITS
    )
    return partial(make, options)


@pytest.fixture
def served(store: StoreProcess) -> Callable[[], SharedLimits]:
    """Makes admissions with a store."""
    return partial(make, SharedLimitsOptions(url=store.url, **LIMITS))


class TestWithoutAStore(AdmissionConformance):
    @pytest.fixture
    def admission(self, lost: Callable[[], SharedLimits]) -> Callable[[], SharedLimits]:
        return lost


class TestItsHooks(ObserverConformance):
    @pytest.fixture
    def observer(self, store: StoreProcess) -> Callable[[], SharedLimits]:
        limits = {"tokens_per_minute": 1_000_000, "max_concurrent_requests": 100}
        return partial(make, SharedLimitsOptions(url=store.url, **limits))


class TestWithAStore(AdmissionConformance):
    @pytest.fixture
    def admission(self, served: Callable[[], SharedLimits]) -> Callable[[], SharedLimits]:
        return served


class TestPackage(PackageConformance):
    @pytest.fixture
    def plugin_name(self) -> str:
        return "shared-limits"
