"""Text for the engine: tokenizers, chat templates, incremental detokenization."""
