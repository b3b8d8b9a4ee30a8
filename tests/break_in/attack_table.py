"""The attacks, what becomes of each, and the test that shows it; the README's table is made of this."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ATTACKS", "README", "rendered"]

README = Path(__file__).parent / "README.md"
BEGIN = "| Attack | How it ends | After | Shown by |"


@dataclass(frozen=True)
class Attack:
    """One row.

    Attributes:
        what: Is done.
        end: How it ends.
        after: How many messages, and bytes, were read of the offender until then.
        tests: By which that is shown.
    """

    what: str
    end: str
    after: str
    tests: tuple[str, ...]


TLS = "tests/transport/test_tls.py::"
HANDSHAKES = "2 messages of at most 16 KiB"
DIRECT = "tests/transport/test_tcp_strangers.py::"
STRANGERS = "test_strangers.py::"
MEMBERS = "test_members.py::"
FORGERIES = "test_forgeries.py::"
WORDS = "test_words.py::"

ATTACKS = (
    # without the token
    Attack("no token; a wrong token", "refused: `AUTHENTICATION`", HANDSHAKES, (STRANGERS + "test_without_the_token",)),
    Attack("a recorded handshake is replayed", "refused: `AUTHENTICATION`, as the listener's nonce is another one", HANDSHAKES, (STRANGERS + "test_a_recorded_handshake_is_replayed",)),
    Attack("a proof is reflected by a listener", "the dialler ends it: a listener's proof is another one", "2 messages", (STRANGERS + "test_a_proof_is_reflected",)),
    Attack("a hello is altered on its way: capabilities", "refused: `AUTHENTICATION`, as the proof covers both hellos", HANDSHAKES, (STRANGERS + "test_a_hello_is_altered_on_its_way",)),
    Attack("a protocol version of before", "refused: `VERSION`", "1 message", (STRANGERS + "test_a_version_without_safety_is_asked_for",)),
    Attack("a frame of another connection is injected, or a frame repeated", "the stream is cut off: `TAG`; the other one goes on", "1 frame", (STRANGERS + "test_a_frame_of_another_connection_is_injected", "tests/transport/test_strangers.py::test_a_frame_that_is_repeated_closes_the_stream")),
    Attack("frames before the proof; garbage in place of a hello", "refused: `MALFORMED`", "1 or 2 messages", ("tests/transport/test_strangers.py::test_frames_before_the_proof", "tests/transport/test_strangers.py::test_garbage_in_place_of_a_hello", "tests/faults/test_garbage.py::test_raw_garbage_on_every_port")),
    Attack("somebody in between ends the TLS connection and begins another", "the proofs fail: they cover the certificate that was shown", HANDSHAKES, (TLS + "test_somebody_in_between_is_found_out_by_the_proofs", TLS + "test_somebody_in_between_has_no_certificate_of_the_worker")),
    Attack("a lane of another stream, or without the token", "refused", HANDSHAKES, ("tests/transport/test_bulk_strangers.py",)),
    Attack("a million tiny messages", "refused at the first: `MALFORMED`", "1 message", (STRANGERS + "test_a_million_tiny_messages_of_a_stranger",)),
    Attack("hellos of 64 MiB", "gRPC takes none above 2 MiB", "0 messages", (STRANGERS + "test_hellos_of_64_mib",)),
    Attack("hellos of almost 2 MiB that never end, on many connections", "the oldest are cut off: no more than 128 are gathered at once", "2 MiB each, 0 messages", (STRANGERS + "test_hellos_of_almost_2_mib_that_never_end",)),
    Attack("half-open connections: nothing, a preface, no hello, half a hello", "cut off after 5 s; one that opens no stream by gRPC after 5 s", "0 messages", (STRANGERS + "test_those_that_fall_silent",)),
    Attack("a thousand connections without a stream", "ended: those that say nothing after 5 s, those that speak HTTP/2 after twice that; more than the process has descriptors to spare are closed at once", "18 KB each, 0 messages", (STRANGERS + "test_a_thousand_connections_without_a_stream", "tests/transport/test_bounds.py::test_more_connections_than_a_listener_takes")),
    Attack("HTTP/2 headers that never end (CONTINUATION)", "gRPC reads on, and ends the connection after 10 s", "up to 40 bytes of memory for each byte, 0 messages", (STRANGERS + "test_headers_that_never_end",)),
    Attack("a thousand TLS handshakes that never end", "ended after 5 s", "30 to 50 KB each, 0 messages", (STRANGERS + "test_tls_handshakes_that_never_end",)),
    Attack("health checks of almost 2 MiB that never end", "the oldest of more than 16 are cut off, the others after 5 s", "2 MiB each, 0 messages", (STRANGERS + "test_questions_about_its_health_that_never_end",)),
    Attack("a hello, a byte at a time", "cut off after 5 s", "0 messages", (STRANGERS + "test_a_hello_a_byte_at_a_time",)),
    Attack("false answers to a worker that looks for its job by multicast; a flood of questions", "each dial is refused, and the worker asks on; rank 0 answers 100 times a second at most", "64 endpoints of 512 bytes", ("tests/rendezvous/test_multicast.py::test_a_forged_answer_leads_to_a_refusal_and_the_search_goes_on", "tests/rendezvous/test_multicast.py::test_any_number_of_announced_endpoints_takes_little_memory", "tests/rendezvous/test_multicast.py::test_a_flood_of_questions_gets_few_answers")),
    # at a direct port, past gRPC
    Attack("a lane or a move without the token, of no stream, of somebody else's; a stream that begins there", "refused: `AUTHENTICATION`, `UNKNOWN_STREAM`, `MALFORMED`", HANDSHAKES, (DIRECT + "test_a_socket_without_the_token", DIRECT + "test_a_socket_of_no_stream_or_of_an_old_one", DIRECT + "test_somebody_elses_stream", DIRECT + "test_no_stream_begins_at_a_direct_port")),
    Attack("no certificate, one of another CA, one with a wrong name, where certificates are demanded", "refused in the TLS handshake, or: `AUTHENTICATION`", "0 or 1 messages", (DIRECT + "test_under_mutual_tls_a_certificate_of_the_job_is_demanded", DIRECT + "test_under_mutual_tls_a_name_is_that_of_its_certificate")),
    Attack("TLS 1.2, or none, at a port that encrypts", "refused in the TLS handshake", "0 messages", (DIRECT + "test_older_tls_is_refused", DIRECT + "test_a_dialler_talks_no_older_tls", DIRECT + "test_plain_bytes_at_a_port_that_encrypts")),
    Attack("handshakes that stop half-way, by the hundred", "cut off after 5 s; of more than 128 the oldest at once", "110 KB each, 0 messages", (DIRECT + "test_who_stops_in_a_handshake_is_cut_off", DIRECT + "test_of_too_many_strangers_the_oldest_goes", DIRECT + "test_handshakes_half_done_by_the_hundred")),
    Attack("messages above 16 KiB before the proof; garbage", "cut off", "4 bytes", (DIRECT + "test_who_says_no_hello_under_tls_is_cut_off", DIRECT + "test_who_says_what_is_no_hello_is_cut_off")),
    Attack("somebody in between ends TLS there and begins another", "the proofs fail; calls stay on gRPC", HANDSHAKES, ("tests/transport/test_tcp.py::test_a_relay_that_ends_tls_is_found_out_by_the_proofs",)),
    Attack("bytes that are altered, left out, repeated or cut off on their way", "the stream ends, and goes on over another one; nothing altered is handed over", "1 record", (DIRECT + "test_under_tls_they_arrive_as_they_were_or_not_at_all", DIRECT + "test_records_of_tls_come_in_their_order_and_once", "tests/transport/test_tcp.py::test_what_was_altered_on_the_way_is_never_handed_over", "tests/transport/test_tcp_lanes.py::test_what_was_altered_on_the_way_is_never_handed_over")),
    Attack("another program listens at a direct port: a web server, one that says nothing, one that hangs up", "calls stay on gRPC", "1 message", ("tests/transport/test_tcp.py::test_who_is_no_worker_leaves_it_on_grpc", "tests/transport/test_tcp.py::test_who_says_nothing_is_given_up_after_the_time_of_a_handshake")),
    # certificates
    Attack("an expired certificate", "refused in the TLS handshake", "0 messages", (TLS + "test_certificates_that_have_expired",)),
    Attack("a certificate of another CA", "refused in the TLS handshake", "0 messages", (TLS + "test_certificates_of_another_authority", TLS + "test_a_listener_does_not_believe_the_certificate_of_a_dialler")),
    Attack("a certificate of the right CA with a wrong name", "refused: `AUTHENTICATION`", "1 message", (TLS + "test_a_dialler_says_a_name_that_is_not_its_own", TLS + "test_a_listener_says_a_name_that_is_not_its_own")),
    Attack("a worker poses as the coordinator: its own name and certificate, with the coordinator's rank", "who joins ends it: `RendezvousError`, as it dials `coordinator`", "1 message", ("tests/rendezvous/test_certified_lines.py::test_a_worker_that_says_its_own_name_is_no_coordinator",)),
    Attack("a worker asks the coordinator in the name of another, which would end that one's line", "refused: `AuthenticationError`; the other one is served on", "its question", ("tests/rendezvous/test_certified_lines.py::test_a_worker_asks_for_itself_alone",)),
    # with the token
    Attack("a worker is dialled under the name of a living one with a later incarnation, or under a name of nobody's", "refused: `UNANNOUNCED`, after 2.5 s; the living one is served on", HANDSHAKES, (MEMBERS + "test_a_name_that_the_coordinator_has_not_given", "tests/transport/test_guest_list.py::test_a_successor_on_whom_nothing_is_known_takes_no_place")),
    Attack("a worker is dialled under its own name and incarnation", "refused: `NAME`; it stays a member to itself", HANDSHAKES, (MEMBERS + "test_the_name_and_incarnation_of_the_victim_itself",)),
    Attack("a worker joins with the incarnation of a living one", "the coordinator refuses it: `ValueError`", "its join", (MEMBERS + "test_the_coordinator_gives_no_living_incarnation_twice",)),
    Attack("a second worker joins under a living name", "the coordinator refuses it: `DuplicateNameError`", "its join", ("tests/rendezvous/test_join.py::test_duplicates_are_refused_at_once",)),
    Attack("`os:system`, `subprocess:run`, `builtins:eval` and their like; dunder and path tricks", "`CallRefusedError`, `FunctionNotFoundError` or `DecodeError`; nothing is imported or run", "the peer stays", (MEMBERS + "test_what_may_not_be_called", MEMBERS + "test_what_may_not_be_called_stands_among_the_arguments", "tests/rpc/test_callable_policy.py")),
    Attack("a dataclass with a `__post_init__`, an exception class with a constructor", "arrive as objects; their code does not run", "the peer stays", (MEMBERS + "test_classes_with_code_of_their_own",)),
    Attack("classes with a `__hash__`, `__eq__`, `__del__`, descriptors, a metaclass, `_missing_`, ... of their own", "`DecodeError`, or arrive as objects; their code does not run", "the peer stays", ("tests/wire/test_runs_no_code.py",)),
    Attack("lengths that lie, depth, too many elements", "`DecodeError`", "the peer stays", (MEMBERS + "test_bombs", "tests/wire/test_limits.py")),
    Attack("keys that collide", "`DecodeError` after 0.25 s of the processor and 10 us a key", "the peer stays", (MEMBERS + "test_keys_that_collide",)),
    Attack("one array as the bytes of many values", "`DecodeError`", "the peer stays", ("tests/wire/test_limits.py::test_bytes_that_are_copied_many_times",)),
    Attack("a million tiny frames with nothing in them", "cut off: `PROTOCOL`", "1001 frames of 16 bytes between two ticks", (MEMBERS + "test_a_million_tiny_frames",)),
    Attack("a million tiny calls whose answers are never taken", "cut off: `PROTOCOL`", "2 x `served_calls_per_peer` answers", (MEMBERS + "test_a_million_tiny_calls_whose_answers_nobody_reads",)),
    Attack("one number for several calls at once", "the first is served, the others are logged as garbage", "the peer stays", (MEMBERS + "test_a_call_that_comes_again_while_it_is_served_is_served_once",)),
    Attack("more calls at once than one peer may have", "`PoolExhaustedError`", "the peer stays", (MEMBERS + "test_calls_beyond_what_one_peer_may_have",)),
    Attack("a write of more envelopes than fit into one", "cut off: `PROTOCOL`", "1 frame of at most 2 MiB", (MEMBERS + "test_frames_with_more_envelopes_than_a_write_holds",)),
    Attack("waits for keys that nobody sets; a store filled up", "`RendezvousError` from the coordinator; others are served, and not more slowly for it", "10,000 keys of one line, of 1,000 characters each; keys and values of `document_bytes`", ("tests/rendezvous/test_store.py::test_bad_arguments", "tests/rendezvous/test_store_bounds.py::test_whoever_takes_too_much_hears_of_it_and_others_are_served", "tests/rendezvous/test_store_bounds.py::test_appended_and_queued_values_count_as_well", "tests/rendezvous/test_store_bounds.py::test_one_request_gets_no_more_than_one_message_of_values", "tests/rendezvous/test_store_bounds.py::test_a_write_looks_at_nobody_who_waits_for_other_keys")),
    Attack("endpoints, names, reasons of many bytes, which the coordinator would tell to all", "`RendezvousError`", "1 MiB", ("tests/rendezvous/test_store_bounds.py::test_what_is_kept_and_told_of_workers_is_short",)),
    Attack("questions of a doctor without end: threads that wait, arrays that nobody takes", "`PoolExhaustedError`", "128 questions, for 60 s each; the arrays are one and the same", ("tests/rpc/test_doctor.py::test_questions_without_end_take_so_many_threads_and_no_more", "tests/rpc/test_doctor.py::test_a_question_takes_so_long_and_no_longer", "tests/rpc/test_doctor.py::test_an_answer_of_many_bytes_holds_none_of_its_own")),
    Attack("an announcement of more than may come", "cut off: `PROTOCOL`", "1 frame", (MEMBERS + "test_a_message_that_announces_more_than_may_come",)),
    Attack("messages about work of others: releases of contexts, deletions of references, replies, cancellations, items, operations of a group; ids of others beside a request", "ignored, or `DecodeError`", "the peer stays", (FORGERIES + "test_the_table_lists_every_kind", FORGERIES + "test_nobody_speaks_for_another", FORGERIES + "test_what_stands_beside_a_request_is_about_its_sender_alone")),
    Attack("a stage of a pipeline hands over values of steps to come, or that no stage takes; it ends steps", "`DecodeError`", "the values of two steps", (FORGERIES + "test_a_stage_of_a_pipeline_fills_no_mailbox_and_ends_no_step", FORGERIES + "test_a_stage_tells_of_no_track_of_another_one")),
    Attack("invented ids: of references, contexts, passes, owners, groups", "forgotten, or refused: `DecodeError`, `PoolExhaustedError`", "`served_calls_per_peer` of each sort", tuple(FORGERIES + each for each in ("test_an_owner_keeps_little_of_what_it_has_never_seen", "test_an_owner_remembers_the_last_references_that_ended_unseen", "test_numbers_with_gaps_and_invented_workers_take_little_space", "test_a_fetch_that_is_given_up_leaves_nothing", "test_a_reference_with_an_invented_owner_is_refused_and_forgotten", "test_contexts_and_passes_that_one_member_opens_have_an_end", "test_messages_for_groups_that_nobody_made_have_an_end"))),
    Attack("words that steer a terminal, or look like lines of the launcher: refusals, kinds, reasons, causes", "shown escaped", "cut after 2,000 characters where they are one line", tuple(WORDS + each for each in ("test_what_is_escaped_steers_no_terminal", "test_a_long_text_is_cut", "test_a_false_coordinator_refuses_with_words_of_its_own", "test_an_error_that_came_in_a_message", "test_a_message_of_the_launcher_is_one_message", "test_the_log_tells_of_garbage_harmlessly", "test_a_reason_for_giving_a_worker_up"))),
    Attack("a flood of messages to a group of others, which would fill the log", "ignored", "100 lines of the log for each member", (WORDS + "test_one_that_is_no_member_does_not_fill_the_log",)),
)  # fmt: skip


def rendered() -> str:
    """Returns the table as it stands in the README."""
    lines = [BEGIN, "|---|---|---|---|"]
    for row in ATTACKS:
        tests = ", ".join(f"`{test}`" for test in row.tests)
        lines.append(f"| {row.what} | {row.end} | {row.after} | {tests} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    head, _, _ = README.read_text().partition(BEGIN)
    README.write_text(head + rendered())
