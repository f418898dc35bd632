"""The server's own process stays small, because it imports nothing that only the engine needs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ["torch", "numpy", "transformers", "llguidance", "rich", "pygments", "prometheus_client"]
CODE = f"""
import sys
import tokenmill.api.cli, tokenmill.api.server
from tokenmill import assembly, EngineConfig
from tokenmill.api.parsing.chosen_parsers import build_answer_parsers

config = EngineConfig()
tokenizer = assembly._load_tokenizer_again(config)
build_answer_parsers(config, tokenizer.chat_format)
assert "tokenmill.plugins.observers.prometheus" in sys.modules, "plugins are loaded"
print(sorted(set({HEAVY}) & sys.modules.keys()))
"""


def test_the_process_of_the_server_imports_no_heavy_package() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
