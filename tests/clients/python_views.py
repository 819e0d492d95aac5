"""Views as any Python program would ask for them: stubs generated from proto/, no code of quipu.

    python3 python_views.py HOST:PORT PROTO_DIR EMPTY_DIR

The server holds the samples `compaction-recovery` as session c, and `fork-parent` and `fork-child` as parent and child.
"""

import json
import pathlib
import sys

import grpc
import grpc_tools
from grpc_tools import protoc

address, proto_dir, out_dir = sys.argv[1:]
files = sorted(str(path) for path in pathlib.Path(proto_dir).rglob("*.proto"))
well_known = str(pathlib.Path(grpc_tools.__file__).parent / "_proto")
arguments = ["protoc", f"-I{proto_dir}", f"-I{well_known}", f"--python_out={out_dir}", f"--grpc_python_out={out_dir}"]
assert protoc.main(arguments + files) == 0
sys.path.insert(0, out_dir)

from quipu.v1 import view_pb2 as pb, view_pb2_grpc  # noqa: E402

views = view_pb2_grpc.ViewServiceStub(grpc.insecure_channel(address))


def log(session_id, **members):
    return pb.LogView(session_id=session_id, **members)


# Messages: the first frame says what was looked at, the others hold the messages as JSON text.
start, *frames = views.DeriveMessages(pb.DeriveMessagesRequest(log=log("c")), timeout=30)
messages = [message for frame in frames for message in frame.messages.messages]
assert start.start.basis.next_seq == 31 and start.start.message_count == len(messages) == 4
assert [message.seq for message in messages] == [21, 13, 15, 28] and start.start.pairing.is_balanced
assert [json.loads(message.message)["role"] for message in messages] == ["user", "assistant", "user", "assistant"]

# One request: what the model was asked at the first dispatch.
request = pb.ReconstructRequestRequest(log=log("c"), dispatch=0)
start, *frames = views.ReconstructRequest(request, timeout=30)
assert start.start.basis.next_seq == 8 == start.start.attempt.first_chunk_seq
assert json.loads(start.start.header)["config"]["model"]
assert [message.seq for frame in frames for message in frame.messages.messages] == [4]

# A history page, and the page before it.
request = pb.ReadHistoryRequest(log=log("c"), max_messages=1)
start, *frames = views.ReadHistory(request, timeout=30)
page = [event.seq for frame in frames for event in frame.events.events]
assert start.start.has_more and page == list(range(start.start.first_seq, 31))
request.before_seq = start.start.first_seq
start, *frames = views.ReadHistory(request, timeout=30)
assert [event.seq for frame in frames for event in frame.events.events][-1] == page[0] - 1

# A trace.
trace = views.TraceEvent(pb.TraceEventRequest(log=log("c"), seq=4), timeout=30)
assert list(trace.replacement_chain) == [21] and trace.target.status == pb.EVENT_STATUS_SHADOWED

# The lineage tree, from both ends.
family = views.TraceSession(pb.TraceSessionRequest(session_id="child"), timeout=30)
assert [one.session_id for one in family.ancestors] == ["96cf59c9-b347-48b9-b234-a5200913ad05"] and family.is_complete
family = views.TraceSession(pb.TraceSessionRequest(session_id=family.ancestors[0].session_id), timeout=30)
assert [one.session_id for one in family.descendants] == ["child"]
print("all good")
