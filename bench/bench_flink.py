"""Flink, Penstock and Spark's own Kafka sink side by side: rounds in turn, in one run, on one broker.

Kafka to Kafka, rows of 100 bytes, 4 partitions; Flink and Penstock exactly once. Each measure is a command of its own;
`all` runs them one after the other, and `report` writes what bench/results/flink.json holds into docs/benchmarks.md.

    python bench/bench_flink.py all --rounds 3
    python bench/bench_flink.py throughput --work bytes json keys
    python bench/bench_flink.py latency --interval 100 200 1000 --rounds 5
    python bench/bench_flink.py latency --interval 100 --rate 2000 50000 --systems flink "penstock, real time"
    python bench/bench_flink.py growth --minutes 30
    python bench/bench_flink.py silence | start | savepoint | writers | history | report
    python bench/bench_flink.py wanted [latency-2000 latency-50000 bytes json counts silence growth] [--trial]

`wanted` carries out the pieces that it is given, or all of them, and compares all results with what Penstock wants to
reach; with `--trial` it only shows that they work, in minutes, and keeps no result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

import flink_report
import flink_wanted
import measures
from bench_kafka import run as run_variant
from flink_report import FIGURES, about_machine, show
from kafka_load import create_topics, delete_topics, feed, open_writers_and_commit
from measures import PARTITIONS, Place
from penstock.errors import PenstockError
from rounds import Found, Plan, Spread, console, interleave
from servers import Broker
from systems import Flink, OneTask, Penstock, RealTime, SparkSink, System, has_standby
from tasks import JSON_WAY, WORKS

HERE = Path(__file__).parent
Cases = Iterator[tuple[str, Any]]  # each is kept as soon as it is measured
#: Flink notices a dead TaskManager after two missed heartbeats of 10 s each, as it is installed.
QUICK = {
    "heartbeat.interval": "500 ms",
    "heartbeat.timeout": "5 s",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100",
    "restart-strategy.fixed-delay.delay": "100 ms",
}


def main() -> None:
    options = parser().parse_args(sys.argv[1:] or ["all"])
    if options.measure == "report":
        flink_report.write(json.loads(options.results.read_text()))
        return
    if options.measure == "wanted":
        wanted(options)
        return
    names = MEASURES if options.measure == "all" else [options.measure]
    given = {
        name: options if options.measure == name else parser().parse_args([name, *_shared(options)]) for name in names
    }
    failed = carry_out_all(given)
    if options.results.exists():
        results = json.loads(options.results.read_text())
        show({name: results[name] for name in results if options.measure in ("all", name)})
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


def wanted(options: argparse.Namespace) -> None:
    """The pieces one after the other, then what all results say."""
    names = options.pieces or list(flink_wanted.PIECES)
    if options.trial:
        options.rounds, options.repeats, options.systems = 1, 0, None
        options.results = Path(tempfile.mkdtemp(prefix="penstock-trial-")) / "flink.json"
    minutes = sum(flink_wanted.PIECES[name].minutes for name in names)
    if not options.trial:
        console.print(f"{', '.join(names)}: about {minutes * options.rounds / 3:.0f} minutes on an idle machine")
    given = {}
    for name in names:
        piece = flink_wanted.arguments(name, trial=options.trial)
        given[name] = parser().parse_args([*piece, *_shared(options)])
    failed = carry_out_all(given)
    if options.results.exists():
        flink_wanted.show(json.loads(options.results.read_text()))
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


def carry_out_all(given: Mapping[str, argparse.Namespace]) -> list[str]:
    """One after the other; those that failed. What is measured stays, and the rest is worth measuring."""
    failed = []
    for name, options in given.items():
        try:
            carry_out(name, options)
        except (SystemExit, PenstockError, KafkaException, OSError, subprocess.SubprocessError) as error:
            console.print(f"{name} was not measured: {error}")
            failed.append(name)
    return failed


def carry_out(name: str, options: argparse.Namespace) -> None:
    console.rule(name)
    with workplace(options.keep and options.keep / name) as (broker, folder):
        for case, found in MEASURES[options.measure](broker, folder, options):
            keep(options.results, options.measure, case, found)


def parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--rounds", type=int, default=3, help="rounds over all systems; the median counts")
    shared.add_argument("--systems", nargs="+", metavar="NAME", help="flink, penstock, spark and variants of them")
    shared.add_argument("--most-other-cores", type=float, default=0.3, help="a round during which others use more is …")
    shared.add_argument("--repeats", type=int, default=2, help="… done again, so many times at most")
    shared.add_argument("--keep", type=Path, metavar="FOLDER", help="work in a new folder, and leave it for reading")
    shared.add_argument("--results", type=Path, default=HERE / "results" / "flink.json")
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="measure", required=True)
    by_name = {name: commands.add_parser(name, parents=[shared]) for name in (*MEASURES, "all", "report", "wanted")}
    by_name["throughput"].add_argument("--work", nargs="+", choices=WORKS, default=WORKS)
    by_name["throughput"].add_argument("--rows", type=int, default=10_000_000)
    by_name["throughput"].add_argument("--epoch", type=int, default=1_000_000, help="rows of an epoch of Spark")
    by_name["throughput"].add_argument(
        "--json-way", default=JSON_WAY, help="how Spark's frames do it, see json_ways.py"
    )
    by_name["latency"].add_argument("--interval", nargs="+", type=int, default=[100, 200, 1000], help="milliseconds")
    by_name["latency"].add_argument("--warm-up", type=float, default=20, help="seconds after the first row")
    by_name["latency"].add_argument("--seconds", type=float, default=30, help="measured")
    by_name["latency"].add_argument("--rate", nargs="+", type=int, default=[measures.RATE], help="rows a second")
    by_name["growth"].add_argument("--minutes", type=int, default=30)
    by_name["silence"].add_argument("--interval", type=int, default=1000, help="milliseconds")
    by_name["silence"].add_argument("--warm-up", type=float, default=20, help="seconds before the kill")
    by_name["silence"].add_argument("--after", type=float, default=40, help="seconds watched after it")
    by_name["start"].add_argument("--interval", type=int, default=1000, help="milliseconds")
    by_name["savepoint"].add_argument("--interval", type=int, default=1000, help="milliseconds")
    by_name["savepoint"].add_argument("--times", type=int, default=3, help="savepoints of one round")
    by_name["writers"].add_argument("--counts", nargs="+", type=int, default=[4, 16, 64, 250, 1000])
    by_name["history"].add_argument("--epochs", type=int, default=10_000)
    by_name["wanted"].add_argument("pieces", nargs="*", metavar="PIECE", help=", ".join(flink_wanted.PIECES))
    by_name["wanted"].add_argument("--trial", action="store_true", help="short windows, one round, no result is kept")
    return made


def _shared(options: argparse.Namespace) -> list[str]:
    """What was given for all measures, for one of them."""
    names = ("rounds", "most_other_cores", "repeats", "keep", "results")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    systems = ["--systems", *options.systems] if options.systems else []
    return [*(text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value))), *systems]


@contextmanager
def workplace(kept: Path | None) -> Iterator[tuple[Broker, Path]]:
    """A broker, and a folder for everything: logs, checkpoints, what was seen. It goes at the end, if none is given."""
    with (
        nullcontext(kept) if kept is not None else tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Broker.start(Path(folder).absolute() / "broker") as broker,
    ):
        yield broker, Path(folder).absolute()


def keep(results: Path, measure: str, case: str, found: Any) -> None:
    """Into the file, beside what earlier runs have measured. A case is always of one run, with all its systems."""
    before = json.loads(results.read_text()) if results.exists() else {}
    merged = {**before, "machine": about_machine(), measure: {**before.get(measure, {}), case: found}}
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(merged, indent=2) + "\n")


def chosen(options: argparse.Namespace, *systems: System) -> list[System]:
    """Those that were asked for, of those that the measure has."""
    wanted = options.systems or [one.name for one in systems]
    return [one for one in systems if one.name in wanted]


def compared(
    measure: str, case: str, options: argparse.Namespace, systems: Sequence[System], run: Callable[[System, str], Found]
) -> Found:
    """The rounds of one case, by system."""

    def said(one: Found) -> str:
        told = [f"{shown.title} {shown.text(one[shown.figure])}" for shown in FIGURES[measure]]
        return ", ".join([*told, *(f"{one[kind]:,} {kind}" for kind in ("lost", "doubled") if one.get(kind))])

    plan = Plan(options.rounds, options.most_other_cores, options.repeats)
    found = interleave(f"{measure} {case}".strip(), systems, plan, run, said)
    for name, own in found.items():
        if any(one.get("lost") or (one.get("doubled") and name != SparkSink.name) for one in own):
            raise SystemExit(f"{measure} {case}, {name}: rows were lost or doubled")
    return {name: {"rounds": own} for name, own in found.items()}


def measure_throughput(broker: Broker, folder: Path, options: argparse.Namespace) -> Cases:
    create_topics(broker.servers, {"in": PARTITIONS})
    console.print(f"writing {options.rows:,} rows of 100 bytes …")
    feed(broker.servers, "in", options.rows)
    systems = chosen(options, Flink(), Penstock(), RealTime(), SparkSink())

    def run(work: str) -> Callable[[System, str], Found]:
        return lambda system, name: measures.throughput(
            system, Place(broker, folder, name), work, "in", options.rows, options.epoch, options.json_way
        )

    for work in options.work:
        case = work if options.json_way == JSON_WAY or work != "json" else f"{work} {options.json_way}"
        able = [system for system in systems if work != "keys" or not isinstance(system, RealTime)]
        yield case, compared("throughput", case, options, able, run(work))


def measure_latency(broker: Broker, folder: Path, options: argparse.Namespace) -> Cases:
    systems = chosen(options, Flink(), Penstock(), OneTask(), RealTime(), SparkSink())

    def run(interval: int, rate: int) -> Callable[[System, str], Found]:
        return lambda system, name: measures.latency(
            system, Place(broker, folder, name), interval / 1000, options.warm_up, options.seconds, rate
        )

    for rate in options.rate:
        for one in options.interval:
            case = str(one) if rate == measures.RATE else f"{one} at {rate}"
            yield case, compared("latency", case, options, systems, run(one, rate))


def measure_growth(broker: Broker, folder: Path, options: argparse.Namespace) -> Cases:
    """Real time alone, for long."""
    for system in chosen(options, RealTime()):
        found = measures.growth(system, Place(broker, folder, "growth"), 10.0, options.minutes)
        told = ", ".join(f"{name} {found[f'{name}_growth']:.2f}" for name in ("p50_ms", "p99_ms", "memory"))
        console.print(f"  {system.name}: last third against the first: {told}; lost {found['lost']}")
        yield system.name, found


def measure_silence(broker: Broker, folder: Path, options: argparse.Namespace) -> Cases:
    standby = [Penstock("--standby", name="penstock, standby")] if has_standby() else []
    quick = Flink(spare=1, settings=QUICK, name="flink, quick heartbeats")
    systems = chosen(options, Flink(spare=1), quick, Penstock(), *standby)

    def run(system: System, name: str) -> Found:
        place = Place(broker, folder, name)
        return measures.silence(system, place, options.interval / 1000, options.warm_up, options.after)

    yield str(options.interval), compared("silence", "", options, systems, run)


def measure_start(broker: Broker, folder: Path, options: argparse.Namespace) -> Cases:
    systems = chosen(options, Flink(), Penstock(), SparkSink())

    def run(system: System, name: str) -> Found:
        return measures.start(system, Place(broker, folder, name), options.interval / 1000)

    yield str(options.interval), compared("start", "", options, systems, run)


def measure_savepoint(broker: Broker, folder: Path, options: argparse.Namespace) -> Cases:
    systems = chosen(options, Flink(), Penstock())

    def run(system: System, name: str) -> Found:
        return measures.saved(system, Place(broker, folder, name), options.interval / 1000, options.times)

    yield "1,000,000 keys", compared("savepoint", "", options, systems, run)


def measure_writers(broker: Broker, folder: Path, options: argparse.Namespace) -> Cases:
    """What an epoch costs after its rows are written, against the number of its writers."""
    for count in options.counts:
        own = []
        for number in range(options.rounds):
            topic = f"writers-{count}-{number}"
            create_topics(broker.servers, {topic: PARTITIONS})
            own.append(open_writers_and_commit(broker.servers, count, topic))
            delete_topics(broker.servers, [topic])
        spread = {name: Spread.of(own, f"{name}_seconds").median for name in ("open", "seal", "commit")}
        told = ", ".join(f"{name} {seconds * 1000:,.1f} ms" for name, seconds in spread.items())
        console.print(f"  {count:,} writers: {told}")
        yield str(count), {"rounds": own}


def measure_history(broker: Broker, folder: Path, options: argparse.Namespace) -> Cases:
    """What an epoch costs against the number of epochs before it."""
    create_topics(broker.servers, {"history": PARTITIONS})
    told = run_variant(
        "penstock", "memory", servers=broker.servers, source="", target="history", rows=options.epochs * 200, epoch=200,
        checkpoint=str(folder / "history"), seconds=options.epochs * 2 + 600,
    )  # fmt: skip
    around = [count for count in (100, 300, 1000, 3000, 10_000, 30_000) if count <= len(told["epoch_ms"])]
    epochs = {str(count): statistics.median(told["epoch_ms"][count - 50 : count]) for count in around}
    for count, ms in epochs.items():
        console.print(f"  the 50 epochs before number {int(count):,}: {ms:.0f} ms in the median")
    yield "epoch_ms", epochs
    for name in ("epochs", "python_megabytes", "heap_megabytes"):
        yield name, told[name]


MEASURES: Mapping[str, Callable[[Broker, Path, argparse.Namespace], Cases]] = {
    "throughput": measure_throughput,
    "latency": measure_latency,
    "growth": measure_growth,
    "silence": measure_silence,
    "start": measure_start,
    "savepoint": measure_savepoint,
    "writers": measure_writers,
    "history": measure_history,
}


if __name__ == "__main__":
    main()
