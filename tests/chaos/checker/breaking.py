"""Runs that break a promise, by the rule that has to complain."""

from __future__ import annotations

from collections.abc import Callable

from chaos.checker.facts import Facts
from tests.chaos.checker import breaking_queue as queue
from tests.chaos.checker import breaking_store as store

BREAKING: dict[str, list[Callable[[], Facts]]] = {
    "success-stored": [
        store.success_with_another_version,
        store.success_with_another_value,
        store.success_of_a_refused_command,
        store.success_of_what_is_not_stored,
    ],
    "failed-not-stored": [
        store.failure_of_what_is_stored,
        store.nothing_changed_by_what_is_stored,
        store.refusal_that_is_not_stored,
        store.refusal_of_another_kind,
    ],
    "every-command-ends": [store.command_without_an_end, store.commands_that_nobody_consumed],
    "answers-agree": [
        store.answers_that_differ,
        store.stored_answers_that_differ_though_queues_were_added,
        store.answer_to_nobody,
        store.answer_of_another_aggregate,
    ],
    "versions-without-gaps": [
        store.version_that_is_passed_over,
        store.aggregate_in_two_shards,
        store.command_that_nobody_sent,
        store.command_of_another_type_than_was_sent,
    ],
    "as-sent": [store.amount_that_nobody_sent, store.owner_that_nobody_sent],
    "replayable": [store.event_of_an_unknown_type, store.note_that_changes_after_its_end],
    "subscriber-order": [
        store.event_that_was_not_handled,
        store.event_that_was_handled_too_early,
        store.event_that_is_not_stored_was_handled,
    ],
    "checkpoints": [store.checkpoint_that_is_behind, store.checkpoint_that_is_missing, store.aggregate_that_is_parked],
    "read-models": [
        store.balance_that_is_shown_wrong,
        store.row_that_is_behind,
        store.booking_that_is_missing,
        store.booking_that_is_there_twice,
        store.note_that_came_back,
    ],
    "process-managers": [
        store.follow_up_that_is_lost,
        store.follow_up_under_another_id,
        store.reservation_that_outlives_its_transfer,
    ],
    "money": [store.balance_that_does_not_follow, store.balance_below_zero],
    "one-owner": [
        queue.two_owners_in_one_epoch,
        queue.epoch_that_goes_back,
        queue.epoch_that_is_given_twice,
        queue.commit_of_an_epoch_that_is_over,
    ],
    "offsets-forward": [
        queue.offset_that_goes_back,
        queue.commit_that_goes_back,
        queue.commit_beyond_the_end,
        queue.offsets_with_a_gap,
        queue.offset_that_is_given_twice,
        queue.send_that_is_stored_twice,
        queue.send_without_its_first_part,
    ],
    "published": [
        queue.row_that_was_not_published,
        queue.row_that_was_published_otherwise,
        queue.row_that_was_published_in_two_ways,
        queue.versions_published_in_another_order,
        queue.aggregate_that_moves_to_another_queue,
        queue.versions_in_another_order_in_an_added_queue,
        queue.stream_that_is_not_stored_was_published,
    ],
}
SEVERAL: list[Callable[[], Facts]] = [store.version_that_is_there_twice]
"""Each of these breaks more than one rule by its nature."""
