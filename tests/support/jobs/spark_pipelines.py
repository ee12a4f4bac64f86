"""`spark-pipelines run` over the project of docs/how-to/connect.md: its files as they are printed there, but for
addresses, names and folders.

python spark_pipelines.py CONFIG.json
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pyspark

from penstock.supply.jars import jar_set
from penstock.supply.java import find_java
from penstock.supply.versions import KAFKA_JARS
from tests.support.jobs.pipeline import Pipeline

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "connect.md"
_FILE = re.compile(
    r"^`(?P<path>[\w./-]+)`:\n\n(?:<!-- fragment -->\n)?```\w+\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


def write_project(folder: Path, config: Pipeline) -> None:
    """The page's project, over the topics and in the storage of `config`."""
    ours = {
        "file:///var/lib/alerts": f"file://{config.storage}",
        "localhost:9092": config.servers,
        '"subscribe", "orders"': f'"subscribe", "{config.source}"',
        '"topic": "alerts"': f'"topic": "{config.copy_to}"',
        '"job": "shop"': f'"job": "{config.name}"',
    }
    files = {match["path"]: match["text"] for match in _FILE.finditer(PAGE.read_text())}
    printed = "".join(files.values())
    assert all(text in printed for text in ours), "the page has changed: say here what stands for what"
    for path, text in files.items():
        for theirs, our in ours.items():
            text = text.replace(theirs, our)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def offsets_of(config: Pipeline) -> Path:
    """Spark's own log of the flow's positions."""
    return Path(config.storage) / "_checkpoints" / "alerts" / "to_alerts" / "0" / "offsets"


def main(config: Pipeline, folder: Path) -> None:
    write_project(folder, config)
    run_project(folder)


def run_project(folder: Path) -> None:
    """Becomes `spark-pipelines run` of the installed PySpark, in that folder."""
    os.chdir(folder)
    os.environ.update(
        PYSPARK_PYTHON=sys.executable, SPARK_HOME=str(Path(pyspark.__file__).parent), JAVA_HOME=str(find_java().home)
    )
    jars = ",".join(map(str, jar_set(KAFKA_JARS)))
    program = Path(sys.executable).with_name("spark-pipelines")
    conf = ("spark.ui.enabled=false", "spark.python.daemon.module=penstock.spark.python_daemon")
    settings = [word for setting in conf for word in ("--conf", setting)]
    os.execv(program, [str(program), "--jars", jars, *settings, "run"])


if __name__ == "__main__":
    main(Pipeline(**json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[1]).parent / "project")
