"""Follows a session from Python while another client appends, is cut, and goes on without a gap.

    python3 python_follow.py HOST:PORT PROTO_DIR EMPTY_DIR
"""

import pathlib
import sys
import threading

import grpc
import grpc_tools
from grpc_tools import protoc

address, proto_dir, out_dir = sys.argv[1:]
files = sorted(str(path) for path in pathlib.Path(proto_dir).rglob("*.proto"))
well_known = str(pathlib.Path(grpc_tools.__file__).parent / "_proto")
arguments = ["protoc", f"-I{proto_dir}", f"-I{well_known}", f"--python_out={out_dir}", f"--grpc_python_out={out_dir}"]
assert protoc.main(arguments + files) == 0
sys.path.insert(0, out_dir)

from quipu.v1 import log_pb2, log_pb2_grpc, session_pb2, session_pb2_grpc, types_pb2  # noqa: E402

channel = grpc.insecure_channel(address)
sessions = session_pb2_grpc.SessionServiceStub(channel)
log = log_pb2_grpc.LogServiceStub(channel)
sessions.CreateSession(session_pb2.CreateSessionRequest(header=types_pb2.Header(id="py")))


def write(first, count):
    for seq in range(first, first + count):
        event = types_pb2.NewEvent(time_ms=1, type="note", data=b"{}", ignorable=True)
        log.Append(log_pb2.AppendRequest(session_id="py", first_seq=seq, events=[event]))


seen = []
for round_ in range(5):
    writer = threading.Thread(target=write, args=(round_ * 40, 40))
    writer.start()
    request = log_pb2.ReadFromRequest(session_id="py", from_seq=len(seen), follow=True)
    frames = log.ReadFrom(request)
    for frame in frames:
        seen.extend(event.seq for event in frame.events.events)
        # Cut somewhere in the middle, but for the last time.
        if len(seen) >= (200 if round_ == 4 else round_ * 40 + 7):
            frames.cancel()
            break
    writer.join()
assert seen == list(range(200)), seen
print("followed", len(seen), "events over", round_, "cuts")
