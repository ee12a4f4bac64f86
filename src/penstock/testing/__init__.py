"""For tests of jobs and of sinks; users may rely on everything here.

`failpoints`: places in the protocol where a test lets the job die. `oracle` compares the rows that must be there with
those that are, `atomicity` judges what a reader saw meanwhile. `sink_contract` is the suite that every sink must pass.

May import all that a job is made of; nothing but `dev` and `cli` imports it.
"""
