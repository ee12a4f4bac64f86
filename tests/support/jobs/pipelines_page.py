"""`spark-pipelines run` over a folder of text files, with a sink by the lines of docs/how-to/connect.md, or by
lines with an option that there is not.

python pipelines_page.py before|after|mistake SERVERS TOPIC FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.before_and_after import pair
from tests.support.jobs.spark_pipelines import run_project

PROGRAM = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

servers = {servers!r}
kafka = {{"kafka.bootstrap.servers": servers}}
{sink}

@dp.append_flow(target="alerts")
def lines():
    return SparkSession.active().readStream.format("text").load({folder!r})
"""


def main(part: str, servers: str, topic: str, folder: Path) -> None:
    before, after = pair("Declarative Pipelines", topic)
    sink = {"before": before, "after": after, "mistake": after.replace('"uid"', '"pth": "elsewhere", "uid"')}[part]
    project = folder / f"project-{part}"
    (project / "transformations").mkdir(parents=True)
    spec = f"name: lines\nstorage: file://{folder / part}\nlibraries:\n  - glob:\n      include: transformations/**\n"
    (project / "spark-pipeline.yml").write_text(spec)
    program = PROGRAM.format(servers=servers, sink=sink, folder=str(folder / "in"))
    (project / "transformations" / "lines.py").write_text(program)
    run_project(project)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
