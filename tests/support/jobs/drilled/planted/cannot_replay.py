"""Planted: lines of a socket, without a journal."""

from penstock import SocketSource
from tests.support.jobs.drilled.place import files, make_job

job = make_job("cannot_replay")
job.write(job.read(SocketSource("localhost", 9), uid="lines"), files(), uid="out")
