"""For tests of jobs and of sinks; users may rely on everything here.

`failpoints`: places in the protocol where a test kills the job. `oracle` compares expected rows with the target's, and
judges whether readers saw epochs whole. `sink_contract` is the suite that every sink must pass, on `sink_harness`.

May import all that a job is made of; only `dev` and `cli` import it.
"""
