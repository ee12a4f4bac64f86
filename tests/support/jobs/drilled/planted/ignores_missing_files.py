"""Planted: files that vanish before they are read are skipped."""

from penstock import FileSource
from tests.support.jobs.drilled.place import INPUT, files, make_job

job = make_job("ignores_missing_files")
source = FileSource(str(INPUT), schema="id bigint", bounded=True, options={"ignoreMissingFiles": "true"})
job.write(job.read(source, uid="rows"), files(), uid="out")
