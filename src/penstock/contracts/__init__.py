"""The contracts that users may implement, and the guarantees that follow from them.

`sink.TwoPhaseSink` with its `Writer` and `Committer`, `lanes.RealTimeSink` with its `LaneClient`, `source.Source`, and
`guarantees.Chain`: a job guarantees what the weakest link of source, engine and sinks does. May import
`checkpoint.decision` (committables and outcomes are part of the contract), `config` and the leaves.
"""
