"""A client as any Python program would write it: stubs generated from proto/, no code of quipu.

    python3 python_client.py HOST:PORT PROTO_DIR EMPTY_DIR
"""

import pathlib
import sys

import grpc
import grpc_tools
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from grpc_tools import protoc

address, proto_dir, out_dir = sys.argv[1:]
files = sorted(str(path) for path in pathlib.Path(proto_dir).rglob("*.proto"))
well_known = str(pathlib.Path(grpc_tools.__file__).parent / "_proto")
arguments = ["protoc", f"-I{proto_dir}", f"-I{well_known}", f"--python_out={out_dir}", f"--grpc_python_out={out_dir}"]
assert protoc.main(arguments + files) == 0
sys.path.insert(0, out_dir)

from quipu.v1 import errors_pb2, log_pb2, log_pb2_grpc, session_pb2, session_pb2_grpc, types_pb2  # noqa: E402

channel = grpc.insecure_channel(address)
sessions = session_pb2_grpc.SessionServiceStub(channel)
log = log_pb2_grpc.LogServiceStub(channel)


def refused(call, request, code):
    """The ErrorInfo and the typed detail of a call that must be refused."""
    try:
        answer = call(request, timeout=30)
        list(answer) if hasattr(answer, "__iter__") else None
    except grpc.RpcError as error:
        assert error.code() == code, error
        info, details = error_details_pb2.ErrorInfo(), []
        for detail in rpc_status.from_call(error).details:
            if detail.Is(info.DESCRIPTOR):
                detail.Unpack(info)
            for kind in (errors_pb2.ConflictDetail, errors_pb2.LimitDetail, error_details_pb2.RetryInfo):
                if detail.Is(kind.DESCRIPTOR):
                    details.append(kind.FromString(detail.value))
        assert info.domain == "quipu.v1"
        assert "ERROR_REASON_" + info.reason in errors_pb2.ErrorReason.keys()
        return info, details
    raise AssertionError(f"{request} was taken")


def event(data):
    return types_pb2.NewEvent(time_ms=1_700_000_000_000, type="note", data=data)


header = types_pb2.Header(id="py", cwd="/work", labels={"team": "a"})
created = sessions.CreateSession(session_pb2.CreateSessionRequest(header=header))
assert not created.already_existed and created.session.head.next_seq == 0
assert sessions.CreateSession(session_pb2.CreateSessionRequest(header=header)).already_existed

# Lone surrogates, big integers, line breaks: bytes, not text.
datas = [b'"\\ud83c"', b"[18446744073709551617, 1.0]", b'{\n"a" : "\\u0000"}'] + [b"%d" % n for n in range(500)]
events = [event(data) for data in datas]
answer = log.Append(log_pb2.AppendRequest(session_id="py", first_seq=0, events=events))
assert (answer.head.next_seq, answer.ack_level) == (len(events), log_pb2.ACK_LEVEL_DURABLE)
assert log.Append(log_pb2.AppendRequest(session_id="py", first_seq=0, events=events)).deduplicated

frames = list(log.ReadFrom(log_pb2.ReadFromRequest(session_id="py")))
assert [frame.WhichOneof("frame") for frame in frames] == ["start", "events", "end"]
read = [found for frame in frames for found in frame.events.events]
assert [found.data for found in read] == datas and [found.seq for found in read] == list(range(len(datas)))
assert not read[0].HasField("source_event_seqs")
assert frames[-1].end.reason == log_pb2.READ_END_REASON_END_OF_LOG
listed = sessions.ListSessions(session_pb2.ListSessionsRequest())
assert [session.header for session in listed.sessions] == [created.session.header]

info, details = refused(
    log.Append, log_pb2.AppendRequest(session_id="py", first_seq=1, events=[event(b"1")]), grpc.StatusCode.ABORTED
)
assert info.reason == "SEQ_CONFLICT" and details[0].first_differing_seq == 1
assert details[0].head.next_seq == len(events) and info.metadata["next_seq"] == str(len(events))
info, details = refused(
    log.Append,
    log_pb2.AppendRequest(session_id="py", first_seq=len(events), events=[event(b"1")] * 1001),
    grpc.StatusCode.INVALID_ARGUMENT,
)
assert info.reason == "BATCH_TOO_LARGE"
assert (details[0].limit_name, details[0].size, details[0].limit) == ("batch_events_max", 1001, 1000)
info, _ = refused(log.ReadFrom, log_pb2.ReadFromRequest(session_id="no"), grpc.StatusCode.NOT_FOUND)
assert info.reason == "SESSION_NOT_FOUND"
info, _ = refused(
    log.Append, log_pb2.AppendRequest(session_id="py", events=[event(b"1")]), grpc.StatusCode.INVALID_ARGUMENT
)
assert (info.reason, info.metadata["field"]) == ("INVALID_REQUEST", "first_seq")

# A client that gives up leaves the batch whole or absent, and the next append works.
for attempt in range(30):
    head = sessions.GetSession(session_pb2.GetSessionRequest(session_id="py")).session.head
    try:
        batch = [event(b"%d" % n) for n in range(20)]
        request = log_pb2.AppendRequest(session_id="py", first_seq=head.next_seq, events=batch)
        log.Append(request, timeout=attempt / 10_000)
    except grpc.RpcError as error:
        # Whichever side saw the deadline first names it; the server's library calls it CANCELLED.
        assert error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED), error
    after = log.Flush(log_pb2.FlushRequest(session_id="py")).head
    assert (after.next_seq - len(datas)) % 20 == 0 and after.durable_next_seq == after.next_seq

assert sessions.DeleteSession(session_pb2.DeleteSessionRequest(session_id="py")).head.next_seq >= len(events)
print("all good")
