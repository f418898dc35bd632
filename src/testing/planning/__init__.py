"""The planner: what a workload would see of an engine, by a measured model of its steps.

`measuring` makes that model with a real executor, `step_time` is the model and its file, `workload`
and `workload_file` say what arrives, `virtual_run` serves it in virtual time, `outcome` is what
came of it. `tokenmill simulate measure` and `tokenmill simulate compare` are the command line of
this.
"""
