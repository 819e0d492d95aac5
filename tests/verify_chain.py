"""Recomputes the chain of a session from an export, without any code of quipu.

    quipu read --json SESSION | python3 verify_chain.py [EXPECTED]

Prints `EVENTS CHAIN`. With EXPECTED (64 hexadecimal digits, as `quipu stat --json` shows) it exits with 1 when the
chain is another one. The rules stand in src/codec/event.rs (the encoding of an event) and src/codec/chain.rs:
chain(-1) = BLAKE3("quipu chain 1"), chain(n) = BLAKE3(chain(n-1) || encoding(event n)).
"""

import json
import re
import struct
import sys

from blake3 import blake3

# Members stand in a fixed order, and `data` is copied byte for byte: it is cut out, not parsed and printed again.
LINE = re.compile(
    rb'\{"type":(?P<type>"(?:[^"\\]|\\.)*"),"seq":(?P<seq>\d+),"time":(?P<time>-?\d+),"data(?P<hex>Hex)?":(?P<data>.*?)'
    rb'(?P<op>,"surfaceOp":(?:"append"|\{"op":"replace","start":(?P<start>\d+),"end":(?P<end>\d+)\}))?'
    rb'(?P<sources>,"sourceEventSeqs":\[(?P<seqs>[\d,]*)\])?(?P<ignorable>,"ignorable":true)?\}',
    re.DOTALL,
)


def block(content):
    return struct.pack("<I", len(content)) + content


def encode(line):
    found = LINE.fullmatch(line)
    if found is None:
        raise SystemExit(f"not an event: {line[:200]!r}")
    seq, data = int(found["seq"]), found["data"]
    if found["hex"]:
        data = bytes.fromhex(json.loads(data))
    out = struct.pack("<Qq", seq, int(found["time"])) + block(json.loads(found["type"]).encode())
    flags = 1 * bool(found["ignorable"]) | 2 * bool(found["op"]) | 4 * bool(found["start"]) | 8 * bool(found["sources"])
    out += bytes([flags])
    if found["start"]:
        out += struct.pack("<QQ", int(found["start"]), int(found["end"]))
    if found["sources"]:
        seqs = [int(text) for text in found["seqs"].split(b",") if text]
        out += struct.pack(f"<I{len(seqs)}Q", len(seqs), *seqs)
    return seq, out + block(data)


chain, events = blake3(b"quipu chain 1").digest(), 0
for line in sys.stdin.buffer:
    seq, encoded = encode(line.rstrip(b"\n"))
    if seq != events:
        raise SystemExit(f"seq {seq} where {events} should be")
    chain, events = blake3(chain + encoded).digest(), events + 1
print(events, chain.hex())
if len(sys.argv) > 1 and sys.argv[1] != chain.hex():
    raise SystemExit(f"the chain should be {sys.argv[1]}")
