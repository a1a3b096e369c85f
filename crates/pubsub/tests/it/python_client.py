"""The official Python client against a Pub/Sub service without credentials.

Usage: python_client.py HOST:PORT

Runs each case on topics and subscriptions of its own and prints one line of JSON a case: its name and what was observed.
What is right is for the test that starts this to say.
"""

import collections
import datetime
import json
import os
import sys
import threading
import time

os.environ["PUBSUB_EMULATOR_HOST"] = sys.argv[1]

from google.api_core import exceptions  # noqa: E402
from google.cloud import pubsub_v1  # noqa: E402
from google.cloud.pubsub_v1 import types  # noqa: E402
from google.cloud.pubsub_v1.subscriber import exceptions as ack_exceptions  # noqa: E402

PROJECT = "my-project"
# How long a message may take to come, and how long nothing must come before "none" is believed.
LIMIT = 20
QUIET = 1.5

publisher = pubsub_v1.PublisherClient(
    publisher_options=types.PublisherOptions(enable_message_ordering=True)
)
subscriber = pubsub_v1.SubscriberClient()


def topic(name):
    path = publisher.topic_path(PROJECT, name)
    publisher.create_topic(request={"name": path})
    return path


def subscription(name, to, **settings):
    path = subscriber.subscription_path(PROJECT, name)
    subscriber.create_subscription(request={"name": path, "topic": to, **settings})
    return path


def publish(to, data, ordering_key="", **attributes):
    future = publisher.publish(to, data.encode(), ordering_key=ordering_key, **attributes)
    return future.result(timeout=LIMIT)


class Pull:
    """A streaming pull whose messages are given to `handle`, one at a time."""

    def __init__(self, path, handle):
        self.messages = []
        self.changed = threading.Condition()
        self.last = time.monotonic()

        def callback(message):
            with self.changed:
                self.messages.append(message)
                self.last = time.monotonic()
                handle(message, self.messages)
                self.changed.notify_all()

        self.future = subscriber.subscribe(path, callback=callback)

    def until(self, condition):
        with self.changed:
            return self.changed.wait_for(lambda: condition(self.messages), timeout=LIMIT)

    def until_quiet(self):
        begun = time.monotonic()
        while time.monotonic() - max(self.last, begun) < QUIET:
            with self.changed:
                self.changed.wait(timeout=0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.future.cancel()
        try:
            self.future.result(timeout=LIMIT)
        except exceptions.Cancelled:
            pass


def ack(message, _):
    message.ack()


def texts(messages):
    return sorted(message.data.decode() for message in messages)


def come(path, count):
    """What comes and is acknowledged: `count` messages, and then whatever else."""
    with Pull(path, ack) as pull:
        pull.until(lambda messages: len(messages) >= count)
        pull.until_quiet()
        return texts(pull.messages)


def ordered():
    to = topic("ordered")
    path = subscription("ordered-sub", to, enable_message_ordering=True)
    ids = [publish(to, f"{n:02}", ordering_key="ab"[n % 2], nth=str(n)) for n in range(20)]
    by_key = collections.defaultdict(list)
    with Pull(path, ack) as pull:
        pull.until(lambda messages: len({m.message_id for m in messages}) >= 20)
        pull.until_quiet()
        for message in pull.messages:
            by_key[message.ordering_key].append(message.data.decode())
        intact = all(dict(m.attributes) == {"nth": str(int(m.data))} for m in pull.messages)
        known = {m.message_id for m in pull.messages} == set(ids)
    return {
        "received": len(pull.messages),
        "in_order": all(found == sorted(found) for found in by_key.values()),
        "keys": sorted(by_key),
        "attributes_intact": intact,
        "ids_as_published": known and len(set(ids)) == 20,
        "again": come(path, 0),
    }


def nacked():
    to = topic("nacked")
    path = subscription("nacked-sub", to)
    for n in range(5):
        publish(to, str(n))
    seen = collections.Counter()

    def handle(message, _):
        seen[message.message_id] += 1
        message.nack() if seen[message.message_id] == 1 else message.ack()

    with Pull(path, handle) as pull:
        pull.until(lambda _: len(seen) == 5 and min(seen.values()) >= 2)
        pull.until_quiet()
    return {"deliveries": sorted(seen.values()), "again": come(path, 0)}


def sought():
    to = topic("sought")
    path = subscription("sought-sub", to, retain_acked_messages=True)
    for n in range(4):
        publish(to, str(n))
    # A little of the service's clock and of ours may differ.
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
    # Under an open stream: on the emulator a new one gets nothing for a minute or more.
    with Pull(path, ack) as pull:
        pull.until(lambda messages: len(messages) >= 4)
        pull.until_quiet()
        first = texts(pull.messages)
        subscriber.seek(request={"subscription": path, "time": before})
        pull.until(lambda messages: len(messages) >= len(first) + 4)
        pull.until_quiet()
        back = texts(pull.messages[len(first):])
    publish(to, "dropped")
    ahead = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    subscriber.seek(request={"subscription": path, "time": ahead})
    return {"first": first, "back": back, "ahead": come(path, 0)}


def exactly_once():
    to = topic("exactly-once")
    path = subscription("exactly-once-sub", to, enable_exactly_once_delivery=True)
    for n in range(3):
        publish(to, str(n))
    futures = []
    with Pull(path, lambda m, _: futures.append(m.ack_with_response())) as pull:
        pull.until(lambda messages: len(messages) >= 3)
        statuses = []
        for future in futures:
            try:
                statuses.append(future.result(timeout=LIMIT).name)
            except ack_exceptions.AcknowledgeError as error:
                statuses.append(error.error_code.name)
        pull.until_quiet()
    # An ack id that was used up: told apart only by an exactly-once subscription.
    used_up = pull.messages[0].ack_id
    try:
        subscriber.acknowledge(request={"subscription": path, "ack_ids": [used_up]})
        stale = "OK"
    except exceptions.GoogleAPICallError as error:
        stale = type(error).__name__
    try:
        subscriber.acknowledge(request={"subscription": path, "ack_ids": ["nonsense"]})
        nonsense = "OK"
    except exceptions.GoogleAPICallError as error:
        nonsense = type(error).__name__
    return {
        "received": texts(pull.messages),
        "acks": statuses,
        "acked_again": stale,
        "nonsense": nonsense,
        "again": come(path, 0),
    }


def dead_lettered():
    to = topic("poisoned")
    dead = topic("dead")
    dead_path = subscription("dead-sub", dead)
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    path = subscription("poisoned-sub", to, dead_letter_policy=policy)
    publish(to, "poison", tenant="t")
    attempts = []

    def handle(message, messages):
        attempts.append(message.delivery_attempt)
        # A service that never forwards must not keep this going.
        message.nack() if len(messages) < 8 else message.ack()

    with Pull(path, handle) as pull:
        pull.until(lambda messages: len(messages) >= 5)
        pull.until_quiet()
    letters = []
    with Pull(dead_path, ack) as letter:
        letter.until_quiet()
        letters = [(m.data.decode(), m.attributes.get("tenant")) for m in letter.messages]
    return {"attempts": attempts, "letters": letters, "again": come(path, 0)}


def filtered():
    to = topic("filtered")
    path = subscription("filtered-sub", to, filter='attributes.region = "eu"')
    publish(to, "eu", region="eu")
    publish(to, "us", region="us")
    publish(to, "none")
    return {"received": come(path, 1)}


def refusals():
    def refused(act):
        try:
            act()
            return "OK"
        except exceptions.GoogleAPICallError as error:
            return type(error).__name__

    to = topic("refusals")
    path = subscription("refusals-sub", to)
    missing_topic = publisher.topic_path(PROJECT, "nowhere")
    missing = subscriber.subscription_path(PROJECT, "nowhere-sub")

    def pull_missing():
        subscriber.subscribe(missing, callback=lambda _: None).result(timeout=LIMIT)

    return {
        "publish_missing": refused(lambda: publish(missing_topic, "m")),
        "pull_missing": refused(pull_missing),
        "topic_exists": refused(lambda: topic("refusals")),
        "subscription_exists": refused(lambda: subscription("refusals-sub", to)),
        "subscription_to_nothing": refused(lambda: subscription("other-sub", missing_topic)),
        "short_name": refused(lambda: topic("ab")),
        "reserved_name": refused(lambda: topic("goog-orders")),
        "empty_message": refused(lambda: publish(to, "")),
        "long_attribute_key": refused(lambda: publish(to, "m", **{"k" * 257: "v"})),
        "long_attribute_value": refused(lambda: publish(to, "m", k="v" * 1025)),
        "reserved_attribute": refused(lambda: publish(to, "m", googled="v")),
        "short_ack_deadline": refused(
            lambda: subscription("short-sub", to, ack_deadline_seconds=9)
        ),
        "seek_missing": refused(
            lambda: subscriber.seek(
                request={"subscription": missing, "time": datetime.datetime.now()}
            )
        ),
        "received": come(path, 0),
    }


for case in [ordered, nacked, sought, exactly_once, dead_lettered, filtered, refusals]:
    begun = time.monotonic()
    observed = case()
    observed["case"] = case.__name__
    print(json.dumps(observed), flush=True)
    print(f"{case.__name__}: {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
