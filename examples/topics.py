"""Fills a Kafka topic with payments in JSON, and prints a topic's rows as a read_committed reader gets them.

python examples/topics.py produce payments --rows 5000
python examples/topics.py consume alerts --rows 49
"""

import argparse
import json
import os
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SERVERS = os.environ.get("KAFKA", "localhost:9092")


def produce(topic: str, rows: int) -> None:
    admin = AdminClient({"bootstrap.servers": SERVERS})
    if topic not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(topic, 4, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": SERVERS})
    for number in range(rows):
        # 500 accounts; every hundredth payment is large.
        amount = (number * 48_271 % 100_000) / 100 if number % 100 else 1_000 + number % 9_000
        account = f"acc-{number * 7919 % 500:04d}"
        producer.produce(topic, json.dumps({"id": number, "account": account, "amount": amount}), account)
        producer.poll(0)
    if left := producer.flush(30):
        raise SystemExit(f"{left} of {rows} rows did not reach {SERVERS}")


def consume(topic: str, rows: int) -> None:
    reader = Consumer({"bootstrap.servers": SERVERS, "group.id": "examples", "isolation.level": "read_committed"})
    while not (partitions := reader.list_topics(topic, 30).topics[topic].partitions):
        time.sleep(1)
    reader.assign([TopicPartition(topic, number, 0) for number in partitions])
    while rows:
        message = reader.poll(1)
        if message is not None and message.error() is None:
            print((message.key() or b"-").decode(), (message.value() or b"-").decode())
            rows -= 1
    reader.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("produce", "consume"))
    parser.add_argument("topic")
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    {"produce": produce, "consume": consume}[options.command](options.topic, options.rows)
