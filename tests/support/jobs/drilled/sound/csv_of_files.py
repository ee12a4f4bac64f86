"""Sound: files in, files out."""

from penstock import FileSource
from tests.support.jobs.drilled.place import INPUT, files, make_job

job = make_job("csv_of_files")
source = FileSource(str(INPUT), schema="id bigint", bounded=True, max_files_per_epoch=1)
job.write(job.read(source, uid="rows"), files(kind="csv"), uid="out")
