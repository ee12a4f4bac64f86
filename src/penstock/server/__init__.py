"""A running job's ear: HTTP on this machine, with the paths and answers of Flink's REST interface."""
