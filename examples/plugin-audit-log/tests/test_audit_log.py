"""The conformance kit, and the contents of the lines."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenmill_audit_log.observer import AuditLog, AuditLogOptions

from tokenmill import EngineConfig, RequestOptions
from tokenmill.plugin import Admitted, PluginContext, Stopping
from tokenmill.testing import ObserverConformance, PackageConformance


@pytest.fixture
def audit_log(tmp_path: Path) -> Iterator[AuditLog]:
    log = AuditLog(
        PluginContext(config=EngineConfig()), AuditLogOptions(path=str(tmp_path / "log.jsonl"))
    )
    yield log
    log._file.close()


class TestAuditLog(ObserverConformance):
    @pytest.fixture
    def observer(self, audit_log: AuditLog) -> AuditLog:
        return audit_log


class TestPackage(PackageConformance):
    @pytest.fixture
    def plugin_name(self) -> str:
        return "audit-log"


def test_every_line_is_json_and_all_are_there_once_the_engine_has_stopped(
    audit_log: AuditLog, tmp_path: Path
) -> None:
    for request_id, num_prompt_tokens in (("a", 3), ("b", 4)):
        audit_log.on_admitted(
            Admitted(
                request_id=request_id,
                num_prompt_tokens=num_prompt_tokens,
                max_tokens=5,
                options=RequestOptions(metadata={"tenant": "t"}, cache_salt="secret"),
            )
        )
    audit_log.on_stopping(Stopping())
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["admitted", "admitted", "stopping"]
    assert lines[1]["request_id"] == "b" and lines[1]["num_prompt_tokens"] == 4
    options = lines[1]["options"]
    assert options["metadata"] == {"tenant": "t"} and "cache_salt" not in options
