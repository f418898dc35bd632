"""Tests of the plugin kv-events, with a consumer of their own."""
