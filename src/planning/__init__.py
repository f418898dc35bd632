"""The planner: predicts an engine's latency and throughput from a measured model of step times.

`measuring` makes the model with a real executor, `step_time` holds the model and its file,
`workload` and `workload_file` define the requests, `virtual_run` serves them in virtual time, and
`outcome` is the result. `virtual_engine` is the engine of such a run, and `fleet` has many of them
behind a router. The commands `tokenmill simulate measure`, `compare` and `fleet` use it.
"""
