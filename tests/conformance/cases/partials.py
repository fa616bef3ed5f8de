"""PARTIAL: the first four rows of the aggregator's table."""

from conformance.script import Script, vector, vector_for


@vector
def the_last_partial_brings_full_to_all(s: Script) -> None:
    """A PARTIAL of a shard that is not in `aggregated` is added; the one that completes the slot is answered to all."""
    job = s.begin()
    job.partial(0, 1, 1).added()
    job.state(round_=1, aggregated=0b01)
    job.partial(1, 1, 10).full_to_all(11)
    job.state(round_=1, aggregated=0b11)


@vector_for(*({"first": first} for first in range(3)))
def partials_come_in_any_order(s: Script, first: int) -> None:
    """Any shard may begin a round, and any may complete it."""
    job = s.begin(3)
    second, third = (first + 1) % 3, (first + 2) % 3
    job.partial(second, 1, 10).added()
    job.state(round_=1, aggregated=1 << second)
    job.partial(first, 1, 1).added()
    job.state(round_=1, aggregated=0b111 & ~(1 << third))
    job.partial(third, 1, 100).full_to_all(111)
    job.state(round_=1, aggregated=0b111)


@vector
def a_repeated_partial_is_not_added_again(s: Script) -> None:
    """While others are missing a second PARTIAL of a shard is dropped, whatever it carries."""
    job = s.begin(3)
    job.partial(0, 1, 1).added()
    job.partial(0, 1, 1).dropped("DUPLICATE")
    job.partial(1, 1, 10).added()
    job.partial(0, 1, 1000).dropped("DUPLICATE")
    job.partial(1, 1, 1000).dropped("DUPLICATE")
    job.state(round_=1, aggregated=0b011)
    job.partial(2, 1, 100).full_to_all(111)


@vector
def a_repeated_partial_brings_full_to_its_sender(s: Script) -> None:
    """When the slot is complete the sums go to the one that asks, and stay what they are."""
    job = s.begin(3)
    job.partial(0, 1, 1).added()
    job.partial(1, 1, 10).added()
    job.partial(2, 1, 100).full_to_all(111)
    for shard in (0, 1, 2, 2):
        job.partial(shard, 1, 1000).full_to_one(111)
    job.state(round_=1, aggregated=0b111)


@vector
def a_repeated_partial_brings_full_while_others_acknowledge(s: Script) -> None:
    """FULL is to be had for as long as the slot has this round: before, between and after the ACKs."""
    job = s.begin()
    job.partial(0, 1, 1).added()
    job.partial(1, 1, 10).full_to_all(11)
    job.ack(0, 1).noted()
    job.partial(0, 1, 1, why="delayed: it has acknowledged").full_to_one(11)
    job.partial(1, 1, 10).full_to_one(11)
    job.state(round_=1, aggregated=0b11, acknowledged=0b01)
    job.ack(1, 1).clear_to_all()
    job.partial(1, 1, 10, why="delayed: the round is over").full_to_one(11)
    job.state(round_=1, aggregated=0b11, acknowledged=0b11)


@vector
def the_next_round_overwrites(s: Script) -> None:
    """PARTIAL(round + 1) begins the round: its values replace the sums, only its shard is in `aggregated`."""
    job = s.begin()
    job.complete(1, 50)
    job.finish(1)
    job.partial(1, 2, 20).added()
    job.state(round_=2, aggregated=0b10)
    job.partial(0, 2, 2).full_to_all(22)
    job.state(round_=2, aggregated=0b11)


@vector
def the_next_round_forgets_acknowledgements(s: Script) -> None:
    """PARTIAL(round + 1) leaves nobody in `acknowledged`, so all must acknowledge anew."""
    job = s.begin()
    job.complete(1)
    job.ack(0, 1).noted()
    job.partial(0, 2, 2, why="before the other's ACK").added()
    job.state(round_=2, aggregated=0b01)
    job.partial(1, 2, 3).full_to_all(5)
    job.ack(1, 2).noted()
    job.state(round_=2, aggregated=0b11, acknowledged=0b10)
    job.ack(0, 2).clear_to_all()


@vector
def the_next_round_begins_whatever_the_slot_has(s: Script) -> None:
    """PARTIAL(round + 1) has no condition: not even that the round before was complete."""
    job = s.begin(3)
    job.partial(0, 1, 1).added()
    job.partial(1, 2, 20).added()
    job.state(round_=2, aggregated=0b010)
    job.partial(2, 1, 100, why="of the round that was given up").dropped("STALE")
    job.partial(0, 2, 2).added()
    job.partial(2, 2, 200).full_to_all(222)


@vector
def one_worker_completes_a_round_alone(s: Script) -> None:
    """With one worker PARTIAL(round + 1) begins and completes the round: FULL to all at once, FULL to one again."""
    job = s.begin(1)
    for round_ in (1, 2, 3):
        job.partial(0, round_, 5 * round_).full_to_all(5 * round_)
        job.state(round_=round_, aggregated=1)
        job.partial(0, round_, 999).full_to_one(5 * round_)
        job.ack(0, round_).clear_to_all()
        job.state(round_=round_, aggregated=1, acknowledged=1)


@vector
def one_worker_may_go_on_without_ack(s: Script) -> None:
    """With one worker a round may follow another without an ACK."""
    job = s.begin(1)
    for round_ in (1, 2, 3):
        job.partial(0, round_, round_).full_to_all(round_)
    job.state(round_=3, aggregated=1)


@vector
def slots_are_apart(s: Script) -> None:
    """A slot has a round, bitmaps and sums of its own."""
    job = s.begin()
    job.partial(0, 1, 1, slot=0).added()
    job.partial(1, 1, 20, slot=1).added()
    job.state(slot=0, round_=1, aggregated=0b01)
    job.state(slot=1, round_=1, aggregated=0b10)
    job.state(slot=2, round_=0)
    job.partial(1, 1, 10, slot=0).full_to_all(11)
    job.partial(0, 2, 3, slot=0).added()
    job.partial(0, 1, 2, slot=1).full_to_all(22)
    job.ack(0, 1, slot=1).noted()
    job.ack(0, 2, slot=0).dropped("STALE")
    job.state(slot=0, round_=2, aggregated=0b01)
    job.state(slot=1, round_=1, aggregated=0b11, acknowledged=0b01)


@vector
def a_whole_operation_with_losses(s: Script) -> None:
    """The picture of one operation: the FULL to worker 1 is lost, it asks again, both acknowledge."""
    job = s.begin()
    job.partial(0, 1, 1).added()
    job.partial(1, 1, 10).full_to_all(11)
    job.ack(0, 1).noted()
    job.partial(1, 1, 10, why="timer").full_to_one(11)
    job.ack(1, 1).clear_to_all()
    job.state(round_=1, aggregated=0b11, acknowledged=0b11)
