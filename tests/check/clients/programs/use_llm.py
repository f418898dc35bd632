"""The command line tool `llm`, with tokenmill as one of its extra OpenAI models."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

url, model, prompt, *photos = sys.argv[1:]
folder = Path(tempfile.mkdtemp())
(folder / "extra-openai-models.yaml").write_text(
    f"- model_id: mine\n  model_name: {model}\n  api_base: {url}/v1\n  api_key_name: none\n"
    "  vision: true\n"
)
environment = os.environ | {"LLM_USER_PATH": str(folder)}


def ask(*flags: str) -> str:
    command = [sys.executable, "-m", "llm", "-m", "mine", *flags]
    command += ["-o", "temperature", "0", "-o", "max_tokens", "16", "--key", "none", prompt]
    command += [flag for photo in photos for flag in ("-a", photo)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.rstrip("\n") if done.returncode == 0 else done.stderr


print(json.dumps({"streamed": ask(), "whole": ask("--no-stream")}))
