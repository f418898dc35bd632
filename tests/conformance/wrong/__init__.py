"""Deliberately wrong plugins: each must fail the one test of its suite that it names in `fails`.

Policies get read-only views. Some of these break in through the private `_step` and `_request`, to
show that the suite finds such damage, too.

Not collected by themselves: test_wrong_plugins.py runs them and looks at what failed.
"""
