"""What the long run found, in a file that grows setting by setting, so that it can be resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import transformers

from benchmarks.recording import describe_machine

from .comparison import NearTie, Served
from .reference import ReferenceCase
from .settings import Setting


class MatrixReport:
    """The file is read before each addition: two processes may share it, each with its settings."""

    def __init__(self, path: Path, command: str, num_settings: int) -> None:
        self._path = path
        self._command = command
        self._num_settings = num_settings

    def holds(self, setting: Setting) -> bool:
        """Whether this setting's result is there already."""
        return any(entry["setting"] == str(setting) for entry in self._read().get("settings", ()))

    def add(
        self,
        setting: Setting,
        cases: Sequence[ReferenceCase],
        served: Served,
        near_ties: Sequence[NearTie],
        seconds: float,
    ) -> None:
        """Write one setting's result. Raises ValueError when the file is of other versions."""
        report = self._read() or self._begin()
        versions = _versions(describe_machine())
        if report["versions"] != versions:
            raise ValueError(
                f"{self._path} was made with {report['versions']} and this is {versions}; remove it"
            )
        entry = _describe(setting, cases, served, near_ties, seconds)
        others = [other for other in report["settings"] if other["setting"] != entry["setting"]]
        report["settings"] = [*others, entry]
        report["totals"] = _add_up(report["settings"])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        new.replace(self._path)  # at once: whoever breaks off the run keeps what was done

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {}
        found: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        return found

    def _begin(self) -> dict[str, Any]:
        machine = describe_machine()
        return {
            "benchmark": "differential_matrix",
            "date": datetime.now(UTC).date().isoformat(),
            "command": self._command,
            "versions": _versions(machine),
            "machine": machine,
            "num_settings_of_the_matrix": self._num_settings,
            "totals": {},
            "settings": [],
        }


def _versions(machine: dict[str, Any]) -> dict[str, str]:
    return {
        "tokenmill": machine["tokenmill"],
        "torch": machine["torch"],
        "transformers": transformers.__version__,
    }


def _add_up(settings: Sequence[dict[str, Any]]) -> dict[str, int]:
    counted = (
        "num_prompts",
        "num_identical",
        "num_preemptions",
        "num_swaps",
        "num_hit_tokens",
    )
    totals = {name: sum(entry[name] for entry in settings) for name in counted}
    return {"num_settings": len(settings), **totals}


def _describe(
    setting: Setting,
    cases: Sequence[ReferenceCase],
    served: Served,
    near_ties: Sequence[NearTie],
    seconds: float,
) -> dict[str, Any]:
    return {
        "setting": str(setting),
        **asdict(setting),
        "attention_backend": served.attention_backend,
        "num_prompts": len(cases),
        "num_prompt_tokens": sum(len(case.prompt_token_ids) for case in cases),
        "num_generated_tokens": sum(map(len, served.token_ids)),
        "num_identical": len(cases) - len(near_ties),
        "near_ties": [asdict(near_tie) for near_tie in near_ties],
        "num_preempted_requests": served.num_preempted,
        "num_preemptions": served.num_preemptions,
        "num_swaps": served.num_swaps,
        "num_hit_tokens": served.num_hit_tokens,
        "seconds": round(seconds, 1),
    }
