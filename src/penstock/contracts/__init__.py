"""What a source and a sink are: the contracts that users may implement, and the guarantees that follow from them.

May import `checkpoint.decision` (committables and outcomes are part of the contract), `config` and the leaves.

`sink.TwoPhaseSink` with its `Writer` and `Committer`, `source.Source`, and `guarantees.Chain`: the weakest link of
source, engine and sinks is what a job gives.
"""
