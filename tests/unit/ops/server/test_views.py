"""Every path that reads, on a living run and on a past one, over real HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.process.registry import Registry
from penstock.ops.server.serving import serving
from tests.support import fake_job
from tests.support.fake_job import Served, Steered
from tests.support.ui_client import Ui, a_story, checkpoint, request, ui
from tests.support.waiting import until

PLAN = {
    "plan": {
        "queries": [
            {
                "uid": "out",
                "guarantee": "exactly-once",
                "sources": [{"uid": "in", "describe": "Kafka orders", "guarantee": "exactly-once"}],
                "operators": [{"name": "Aggregate", "stateful": True}],
                "sinks": [{"uid": "out", "describe": "files", "guarantee": "exactly-once"}],
            }
        ],
        "weakest": {"kind": "source", "uid": "in", "guarantee": "exactly-once", "why": "replayable"},
    },
    "spark_ui": "http://127.0.0.1:4040",
}


class Insight:
    def __init__(self) -> None:
        self.looked = 0
        self.reads: set[tuple[str, int]] | None = set()

    def plan(self) -> dict[str, Any]:
        return PLAN

    def positions(self) -> dict[str, Any]:
        self.looked += 1
        partition = {"partition": "orders-0", "offset": 7, "end": 9, "lag": 2}
        return {"out": {"watermark": 5000, "sources": {"in": [partition]}}}

    def reading(self, query: str, epoch: int) -> bool:
        if self.reads is None:
            raise RuntimeError("Spark does not say")
        return (query, epoch) in self.reads

    def transactions(self) -> dict[str, Any]:
        return {"transactions": [], "unseen": []}

    def threads(self) -> list[dict[str, str]]:
        return [{"name": "main (RUNNABLE)", "stack": "java.lang.Thread.run"}]


@pytest.fixture
def insight(monkeypatch: pytest.MonkeyPatch) -> Insight:
    given = Insight()
    monkeypatch.setattr(fake_job, "serving", lambda job, settings, events: serving(job, settings, events, given))
    return given


@pytest.fixture
def living(insight: Insight) -> Iterator[Served]:
    with fake_job.served(Steered()) as job:
        a_story(job.events.emit)
        yield job


@pytest.fixture(params=["living", "past"])
def asked(request: pytest.FixtureRequest, living: Served) -> Iterator[Any]:
    """What asks about the run: its own server, or the ui after its end."""
    if request.param == "living":
        yield lambda path: living.ask("GET", path.replace("RUN", living.id))
        return
    living.end()
    with ui() as page:
        yield lambda path: page.ask("GET", path.replace("RUN", living.id))


def test_the_runs(asked: Any, living: Served) -> None:
    [run] = asked("/penstock/v1/runs")[1]["runs"]
    live = living.thread.is_alive()
    assert (run["id"], run["name"], run["live"]) == (living.id, "payments", live)
    assert run["state"] == ("RUNNING" if live else "FINISHED")
    assert (run["address"] is not None, run["end"] is None) == (live, live)
    assert {"start", "duration", "restarts", "savepoint", "error", "program"} <= set(run)


def test_one_run(asked: Any, living: Served) -> None:
    status, body = asked("/penstock/v1/runs/RUN")
    live = living.thread.is_alive()
    assert status == 200
    [query] = body["queries"]
    assert (query["uid"], query["epoch"], query["generation"], query["rows_total"]) == ("out", 3, 3, 30)
    assert (query["phase"], query["guarantee"]) == ("idle", "exactly-once")
    assert query["operators"] == [{"name": "Aggregate", "stateful": True}]
    assert query["sinks"] == [{"uid": "out", "describe": "files", "guarantee": "exactly-once"}]
    [source] = query["sources"]
    assert [part["lag"] for part in source["partitions"]] == ([2] if live else [])
    assert query["watermark"] == (5000 if live else None)
    assert body["weakest"]["uid"] == "in"
    assert body["spark_ui"] == ("http://127.0.0.1:4040" if live else None)
    assert body["damage"] == []
    assert (query["p50_ms"], query["p99_ms"], query["inflight_bytes"]) == (500, 500, 400)
    assert (query["lag"], query["error"]) == (2 if live else None, None)


def test_the_phase_of_the_epoch_under_way(living: Served, insight: Insight) -> None:
    def phase() -> str:
        return str(living.ask("GET", f"/penstock/v1/runs/{living.id}")[1]["queries"][0]["phase"])

    living.events.emit("opened", query="out", epoch=5, generation=3)
    insight.reads = {("out", 5)}
    assert phase() == "read"
    insight.reads = {("out", 4)}
    assert phase() == "prepare"
    insight.reads = None  # it cannot be asked
    assert phase() == "prepare"
    insight.reads = {("out", 5)}
    living.events.emit("precommitted", query="out", epoch=5, generation=3, rows=1, writers=1)
    assert phase() == "decide"


def test_its_epochs(asked: Any) -> None:
    _, body = asked("/penstock/v1/runs/RUN/epochs?query=out&limit=2")
    assert ([epoch["epoch"] for epoch in body["epochs"]], body["more"]) == ([4, 3], True)
    _, body = asked("/penstock/v1/runs/RUN/epochs?before=3")
    assert ([epoch["epoch"] for epoch in body["epochs"]], body["more"]) == ([2, 1], False)
    assert set(body["epochs"][0]) == {
        "query", "epoch", "generation", "outcome", "mode", "opened", "ended", "phases", "total_ms", "rows", "bytes",
        "sinks", "state_rows", "state_bytes", "inflight_bytes", "slowest", "skew", "why", "sums",
    }  # fmt: skip
    for bad in ("limit=x", "before=-1", "before=1.5", f"limit={'9' * 30}"):
        assert asked(f"/penstock/v1/runs/RUN/epochs?{bad}")[0] == 400


def test_the_rest_of_it(asked: Any) -> None:
    series = asked("/penstock/v1/runs/RUN/series?points=2")[1]["series"]
    assert set(series) == {"time", "total_ms", "commit_ms", "rows", "state_bytes", "inflight_bytes"}
    assert len(series["time"]) == 2
    [operator] = asked("/penstock/v1/runs/RUN/state")[1]["operators"]
    assert {"query", "operator", "rows", "state_bytes", "memory_bytes", "backend", "partitions"} <= set(operator)
    assert asked("/penstock/v1/runs/RUN/inflight")[1]["sinks"][0]["epochs"] == 1
    told = asked("/penstock/v1/runs/RUN/restarts")[1]
    assert (told["restarts"][0]["verdict"], told["recoveries"][0]["action"]) == ("retry", "finished")
    told = asked("/penstock/v1/runs/RUN/exceptions")[1]["exceptions"]
    assert {"time", "query", "error", "happened", "safe", "to_do"} <= set(told[0])
    rows = asked("/penstock/v1/runs/RUN/settings")[1]["settings"]
    assert {"key": "rest.port", "value": "0", "source": "default"} in rows
    assert isinstance(asked("/penstock/v1/runs/RUN/settings")[1]["arguments"], list)
    assert asked("/penstock/v1/runs/RUN/log") == (200, {"path": None, "text": None})  # it was not detached
    [savepoint] = asked("/penstock/v1/runs/RUN/savepoints")[1]["savepoints"]
    assert set(savepoint) == {"path", "kind", "time", "bytes", "drained", "epochs"}
    assert asked("/penstock/v1/runs/RUN/alignment?query=out&epoch=3")[0] == 404  # no job's folder, no record
    assert asked("/penstock/v1/runs/RUN/alignment?query=..%2f..&epoch=3")[0] == 404
    assert asked("/penstock/v1/runs/RUN/alignment")[0] == 400
    assert set(asked("/penstock/v1/runs/RUN/transactions")[1]) == {"transactions", "unseen"}
    assert asked("/penstock/v1/health") == (200, {"status": "ok"})
    assert asked("/penstock/v1/nothing")[0] == 404


def test_the_end_of_its_log_without_secrets(living: Served, tmp_path: Path, registry: Registry) -> None:
    file = tmp_path / "job.log"
    file.write_text("the first line\n" * 10_000 + "INFO postgresql://me:hunter2@host/db\n")
    living.end()
    registry.put(replace(living.entry, log=str(file)))
    with ui() as page:
        body = page.ask("GET", f"/penstock/v1/runs/{living.id}/log")[1]
        assert page.ask("GET", f"/penstock/v1/runs/{living.id}/log", token=None)[0] == 401
    lines = body["text"].splitlines()
    assert (lines[0], "hunter2" in body["text"], len(body["text"]) <= 1 << 16) == ("the first line", False, True)
    assert lines[-1].startswith("INFO postgresql://me:")


def test_the_threads_of_a_living_run(living: Served) -> None:
    path = f"/penstock/v1/runs/{living.id}/threads"
    threads = living.ask("GET", path)[1]
    assert {"MainThread", "penstock-control"} <= {thread["name"] for thread in threads["python"]}
    assert "test_the_threads_of_a_living_run" in str(threads["python"])
    assert threads["jvm"] == [{"name": "main (RUNNABLE)", "stack": "java.lang.Thread.run"}]
    living.end()
    with ui() as page:
        assert page.ask("GET", path) == (200, {"python": [], "jvm": []})


def test_flinks_checkpoints(asked: Any) -> None:
    status, body = asked("/v1/jobs/RUN/checkpoints")
    assert (status, set(body)) == (200, {"counts", "summary", "latest", "history"})
    assert body["counts"] == {"restored": 0, "total": 4, "in_progress": 0, "completed": 3, "failed": 1}
    assert set(body["summary"]) == {
        "checkpointed_size", "state_size", "end_to_end_duration", "processed_data", "persisted_data",
    }  # fmt: skip
    assert body["summary"]["end_to_end_duration"] == dict.fromkeys(
        ("min", "max", "avg", "p50", "p90", "p95", "p99", "p999"), 500
    )
    assert (body["latest"]["completed"]["id"], body["latest"]["failed"]["id"]) == (3, 4)
    assert body["latest"]["failed"]["failure_message"] == "the row {'iban': 'DE02'} was refused"
    assert body["latest"]["savepoint"]["external_path"] == "s3a://bucket/savepoint-1"
    assert body["latest"]["restored"] is None
    assert [line["id"] for line in body["history"]] == [4, 3, 2, 1]
    assert asked("/jobs/RUN/checkpoints/details/2")[1]["tasks"]["out"]["state_size"] == 400
    assert asked("/jobs/RUN/checkpoints/details/99")[0] == 404
    assert asked("/jobs/RUN/checkpoints/details/x")[0] == 404
    assert asked("/jobs/RUN/checkpoints/details/2/subtasks/out")[0] == 404
    config = asked("/jobs/RUN/checkpoints/config")[1]
    assert (config["mode"], config["timeout"], config["externalization"]["enabled"]) == ("exactly_once", 600000, True)


def test_flinks_other_paths(asked: Any, living: Served) -> None:
    assert asked("/v1/overview")[1]["jobs-running"] == (1 if living.thread.is_alive() else 0)
    assert asked("/config")[1]["features"]["web-cancel"] is False  # its button asks by GET
    assert asked("/jobs")[1]["jobs"][0]["id"] == living.id
    detail = asked("/jobs/RUN")[1]
    plan = detail["plan"]
    assert [node["id"] for node in plan["nodes"]] == ["out:source:in", "out", "out:sink:out"]
    assert plan["nodes"][1]["inputs"][0]["id"] == "out:source:in"
    assert detail["jid"] == living.id
    source, query, sink = detail["vertices"]  # its dashboard needs one for each node
    assert (query["id"], query["parallelism"], query["epoch"] is not None) == ("out", 2, True)
    assert (query["metrics"]["write-records"], query["metrics"]["write-records-complete"]) == (30, True)
    assert (sink["metrics"]["read-records"], sink["metrics"]["read-bytes"]) == (30, 3000)
    assert not any(value for name, value in source["metrics"].items() if name.endswith("complete"))
    entries = asked("/jobs/RUN/exceptions")[1]["exceptionHistory"]["entries"]
    assert [entry["taskName"] for entry in entries] == ["out", "out"]
    config = asked("/jobs/RUN/config")[1]["execution-config"]
    assert config["user-config"]["rest.port"] == "0"
    assert asked("/jobs/RUN/vertices/out:sink:out") == (200, {"subtasks": []})
    assert asked("/jobs/RUN/vertices/out/watermarks") == (200, [])
    busy, skew = asked("/jobs/RUN/vertices/out/subtasks/metrics?get=busyTimeMsPerSecond,numRecordsInPerSecond")[1]
    assert busy.get("max") == (500 if living.thread.is_alive() else None)
    assert skew == {"id": "numRecordsInPerSecond"}  # not known, but the dashboard wants it


def test_flinks_checkpoints_of_one_query(asked: Any, living: Served) -> None:
    if living.thread.is_alive():
        living.events.emit("checkpoint", **checkpoint(9, "other", total_ms=900.0))
        assert asked("/jobs/RUN/checkpoints")[1]["counts"]["completed"] == 4
        one = asked("/jobs/RUN/checkpoints?query=other")[1]
        assert (one["counts"]["completed"], one["latest"]["completed"]["id"], len(one["history"])) == (1, 9, 1)
        assert one["summary"]["end_to_end_duration"]["max"] == 900
        tasks = asked("/jobs/RUN/checkpoints/details/9")[1]["tasks"]
        assert tasks["other"]["num_subtasks"] == 2
        assert tasks["out:sink:out"]["latest_ack_timestamp"] == -1  # that query has no epoch 9
    assert asked("/jobs/RUN/checkpoints?query=none")[1]["counts"]["total"] == 0


def test_other_systems_are_asked_no_more_often_because_many_look(living: Served, insight: Insight) -> None:
    for _ in range(5):
        assert living.ask("GET", f"/penstock/v1/runs/{living.id}")[0] == 200
    assert insight.looked == 1


def stream(address: str, path: str, token: str, last: str | None = None) -> Generator[dict[str, Any], None, None]:
    """Events as a browser reads them."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    headers = {"Authorization": f"Bearer {token}"} | ({"Last-Event-ID": last} if last is not None else {})
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/event-stream; charset=utf-8")
    fields: dict[str, str] = {}
    try:
        while line := answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "data" in fields:
                yield {"id": int(fields["id"]), "event": fields["event"], "data": json.loads(fields["data"])}
                fields = {}
    finally:
        connection.close()


@pytest.mark.parametrize("through", ["its own address", "the ui"])
def test_events_as_they_come(living: Served, through: str) -> None:
    with ui() as page:
        address, token = (
            (page.address, Ui.token) if through == "the ui" else (str(living.serving.address), str(living.entry.token))
        )
        path = f"/penstock/v1/runs/{living.id}/events"
        old = stream(address, path, token, last="3")
        assert [next(old)["id"] for _ in range(3)] == [4, 5, 6]
        old.close()
        fresh = stream(address, f"{path}?after=9999999", token)  # of an earlier process: from the beginning
        assert next(fresh)["event"] == "started"
        living.events.emit("checkpoint", **checkpoint(77))
        assert until(lambda: (event := next(fresh))["data"].get("epoch") == 77 and event, "the event")["event"] == (
            "checkpoint"
        )
        living.end()
        with contextlib.suppress(OSError, http.client.HTTPException):
            list(fresh)  # the stream ends with the job
        assert request(page.address, "GET", path, {"Authorization": f"Bearer {Ui.token}"})[0] == 204


def test_a_past_run_without_history_has_what_its_job_s_folder_keeps(tmp_path: Path) -> None:
    from penstock.checkpoint.record import CheckpointRecord, SinkShare
    from penstock.storage.local import LocalStorage

    folder = tmp_path / "ck" / "payments"
    storage = LocalStorage(folder / "out")
    (folder / "queries").mkdir(parents=True)
    (folder / "queries" / "out.json").write_text("{}")
    for epoch in (1, 2):
        record = CheckpointRecord("out", epoch, 1, "aligned", "complete", 100.0 + epoch, 101.0 + epoch,
                                  sinks=(SinkShare("out", 5, 1),))  # fmt: skip
        storage.create(record.file, record.to_bytes())
    (folder / "out" / "checkpoints" / "chk-3.json").write_text("garbage")
    (folder / "queries" / "elsewhere.json").write_text("{}")
    for storage_given in (tmp_path / "ck", folder):
        with ui(str(storage_given)) as page:
            [run] = page.ask("GET", "/penstock/v1/runs")[1]["runs"]
            assert (run["name"], run["state"], run["live"]) == ("payments", "SUSPENDED", False)
            _, body = page.ask("GET", f"/penstock/v1/runs/{run['id']}/epochs")
            assert [(epoch["epoch"], epoch["rows"]) for epoch in body["epochs"]] == [(2, 5), (1, 5)]
            answer = page.ask("GET", f"/penstock/v1/runs/{run['id']}/alignment?query=out&epoch=2")
            assert answer == (200, {"alignment": None})
            assert page.ask("GET", f"/jobs/{run['id']}/checkpoints/details/2/subtasks/out")[1]["subtasks"] == []
