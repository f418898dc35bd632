"""The suites for policies: plugins that decide, and plugins that observe."""
