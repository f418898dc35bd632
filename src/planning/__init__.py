"""The planner: predicts an engine's latency and throughput from a measured model of step times.

`measuring` makes the model with a real executor, `step_time` holds the model and its file,
`workload` and `workload_file` define the requests, `virtual_run` serves them in virtual time, and
`outcome` is the result. The commands `tokenmill simulate measure` and `tokenmill simulate compare`
use it.
"""
