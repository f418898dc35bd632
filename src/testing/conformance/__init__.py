"""The conformance suites: tests of what the engine expects from a plugin, one class per kind.

`tokenmill plugins check NAME` runs them without any code. A plugin's own tests subclass them and
define one fixture. `tokenmill.testing` exports them.
"""
