//! The failure cases about who writes, what is durable when, names, and formats: what is right, and the tests that hold
//! it. The other topics stand in `cases`.

use crate::cases::{Case, check};

const CASES: [Case; 14] = [
    (
        "C54",
        "one owner: a late write of the one before is fenced, leaves nothing, and hears who has the session and what became of its batch",
        &[
            "it/owners::a_take_over_fences_the_host_before_and_tells_it_what_became_of_its_batch",
            "it/races::eight_racing_hosts_and_a_killed_server_keep_the_rules_of_a_session",
        ],
    ),
    (
        "C55",
        "a second server on the directory is refused with the holder's name, by every path and while the first is stopped; a killed one leaves no lock",
        &[
            "it/cases::a_second_server_is_refused_by_every_path_and_while_the_first_is_stopped_c55",
            "it/process::a_second_server_on_the_same_directory_is_refused_with_3_and_told_who_holds_it",
        ],
    ),
    (
        "C56",
        "a stale append conflicts, and nothing is rebased; a turn inside a turn is said or refused",
        &[
            "it/owners::a_writer_that_was_overtaken_is_refused_and_nothing_is_rebased",
            "core/cases::a_stale_writer_that_numbers_anew_starts_a_turn_in_a_turn_c56",
        ],
    ),
    (
        "C58",
        "a writer that numbers from zero is refused with the head; a name that is there is not made again, and ids fold nothing",
        &[
            "it/owners::a_writer_that_starts_again_from_zero_is_refused_with_the_head",
            "it/cases::an_id_is_never_a_path_and_ids_differ_in_every_byte_c71",
            "it/sessions::creating_again_is_harmless_and_another_header_or_profile_is_refused",
        ],
    ),
    (
        "C61",
        "a file of another version is refused with the direction, before anything of it is read",
        &[
            "core/dsh/plain::a_foreign_version_is_refused_before_the_shape_and_says_its_direction",
            "it/cli::an_import_can_be_repeated_and_names_what_it_refuses",
        ],
    ),
    (
        "C63",
        "packed rows are the events that they stand for, a malformed row is refused whole, unknown members stay",
        &[
            "core/rows::rows_decode_as_in_the_vectors",
            "core/rows::what_a_row_may_not_be_is_named",
            "core/dsh/plain::files_scan_as_in_the_vectors",
            "core/dsh/plain::events_carry_every_envelope_field_and_the_bytes_of_their_data",
        ],
    ),
    (
        "C67",
        "an export imports again under its own id, and a second export is the same file",
        &["it/cli::an_export_of_an_import_of_an_export_is_the_same_file"],
    ),
    (
        "C71",
        "any id within the rules is a session of its own and never a path, in the store and in exports; others are refused in every call",
        &[
            "it/cases::an_id_is_never_a_path_and_ids_differ_in_every_byte_c71",
            "it/limits::names_that_break_their_rules_are_refused_everywhere",
        ],
    ),
    (
        "C73",
        "limits of names are bytes, and hold before anything is made",
        &["it/cases::limits_of_names_are_bytes_and_hold_before_anything_is_made_c73"],
    ),
    (
        "C91",
        "a full disk is said at once, reads go on, nothing is called durable that is not, and writes go on when there is room",
        &[
            "it/ops::a_full_volume_is_refused_at_the_mark_and_taken_again_without_a_restart",
            "it/durability::a_flush_after_accepted_events_were_lost_does_not_call_them_durable",
        ],
    ),
    (
        "C93",
        "an answer says what it stands for, and no more than was done",
        &[
            "it/durability::after_a_failed_commit_waiters_hear_it_writes_end_and_reads_go_on",
            "it/durability::nothing_that_was_answered_durable_is_lost_when_the_disk_lies_later",
            "it/append::accepted_events_are_ordered_at_once_and_durable_with_flush",
            "it/power::power_cuts_lose_nothing_that_was_acknowledged_and_every_store_opens",
        ],
    ),
    (
        "C95",
        "many writers at a slow disk wait, none is refused, and batches are whole",
        &[
            "it/cases::two_hundred_writers_at_a_slow_disk_wait_and_none_is_refused_c95",
            "it/durability::a_full_queue_refuses_with_a_delay_and_takes_appends_again_when_it_empties",
        ],
    ),
    (
        "C97",
        "a call that is given up leaves all of its work or nothing, and no lock",
        &[
            "it/owners::a_call_that_is_cancelled_leaves_all_or_nothing_and_no_lock",
            "it/durability::appends_cut_short_at_any_moment_are_wholly_there_or_wholly_absent",
        ],
    ),
    (
        "C98",
        "parallel appends of one writer are ordered by their seqs or refused, and a crash leaves a prefix",
        &[
            "it/owners::parallel_appends_of_one_owner_are_ordered_or_refused",
            "it/races::eight_racing_hosts_and_a_killed_server_keep_the_rules_of_a_session",
            "it/kill::kill_9_under_load_loses_nothing_that_was_acknowledged",
        ],
    ),
];

/// The rows of tool pairing (C01, C04, C06, C08, C10) and of the order of brackets (C65) stand with the folds.
#[test]
fn every_case_of_ownership_shutdown_ids_and_formats_has_a_test() {
    check(&CASES, &[54, 55, 56, 58, 61, 63, 67, 71, 73, 91, 93, 95, 97, 98]);
}
