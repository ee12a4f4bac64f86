"""For tests of jobs and of sinks: the oracle that counts what is lost or doubled, and the contract of every sink.

`oracle` (with `atomicity`) compares what went in with what came out; `sink_contract.SinkContract` is the suite that a
sink's tests inherit, over a `sink_harness.SinkHarness`. May import the sink's contract and what lies below it.
"""
