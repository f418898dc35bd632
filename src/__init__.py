"""tokenmill: an LLM inference engine whose every policy is a plugin."""

if __name__ != "tokenmill":
    raise ImportError("import 'tokenmill', not 'src': run `make install` or `pip install -e .` first")
