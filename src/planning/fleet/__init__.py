"""Many replicas behind a router, in virtual time: `tokenmill simulate fleet`.

`curves` and `traffic` make the requests. `settings` defines the replicas and the events of a run.
`replica` is one engine and its state, `driving` computes its steps, `operating` starts, loses and
replaces replicas, `sending` sends requests to them as a server does, and `run` joins them. `tally`
and `outcome` are the result, and `search` finds the number of replicas for a limit.
"""
