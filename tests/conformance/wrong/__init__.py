"""Deliberately wrong plugins: each must fail the one test of its suite that it names in `fails`.

Not collected by themselves: test_wrong_plugins.py runs them and looks at what failed.
"""
