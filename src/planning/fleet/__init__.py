"""Many replicas behind a router, in virtual time: `tokenmill simulate fleet`.

`curves` and `traffic` make the requests, `settings` says what happens to the replicas, `replica` is
one engine and its state, `operating` starts, loses and replaces replicas, `sending` sends requests to
them as a server does, `run` is the clock that joins them, `tally` and `outcome` are the result, and
`search` finds the number of replicas for a limit.
"""
