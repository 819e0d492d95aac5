#!/usr/bin/env python3
"""The figures of streams and followers: medians over repetitions, as ratios to the limits of the same run.

  KEEP=limit tests/benches/peerlab.py PEERLAB_DIR --reps 0     builds quipu, the generator and its limits
  tests/benches/follow.py [--reps 3] [--secs 3]                five minutes on a quiet machine

Peers: gc (one group-committed fdatasync behind tonic), gcloop (the same on the event loop), null (answers, stores
nothing). Only ratios within one run mean anything."""
import argparse, json, os, statistics, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LAB = ROOT / "target" / "peerlab"
HOME = os.environ.setdefault("PEERLAB_HOME", str(ROOT / "target" / "peerlab-home"))
os.environ["QUIPU_BIN"] = str(ROOT / "target/release/quipu")
BIN = f"{HOME}/tgt-harness/release/peerlab"
ADAPTERS = {"gc": "limit", "gcloop": "limit", "null": "limit", "quipu": "quipu"}
# name -> peers, workload arguments, figures that are shown
RUNS = {
    "W1-stream": (["gcloop", "quipu"], ["W7", "--sessions", "64", "--in-flight", "1"], ["events_per_s"]),
    "W7": (["gc", "quipu"], ["W7"], ["events_per_s"]),
    "W7b": (["gc", "quipu"], ["W7b"], ["events_per_s"]),
    "W5x50": (["gc", "quipu"], ["W5"], ["p50_us", "p99_us"]),
    "W5x1": (["gc", "quipu"], ["W5", "--sessions", "1"], ["p50_us", "p99_us"]),
}
# figure -> what is promised of it: (run, figure, limit it is measured against, at least or at most, bound)
TARGETS = [
    ("W1-stream", "events_per_s", "gcloop", "at least", 0.75),
    ("W7", "events_per_s", "gc", "at least", 0.7),
    ("W7b", "events_per_s", "gc", "at least", 0.5),
    ("W5x50", "p50_us", "gc", "at most", 1.15),
    ("W5x50", "p99_us", "gc", "at most", 1.3),
]


def sh(*args, **more):
    return subprocess.run(args, capture_output=True, text=True, **more)


def start(peer):
    started = sh(LAB / "setup.sh", "start", peer)
    if started.returncode != 0:
        raise SystemExit(f"{peer}: {started.stderr[-500:]}")
    return started.stdout.split()[-2:]


def command(peer, server, workload, secs, tag):
    pid, address = server
    return [BIN, "run", "--peer", ADAPTERS[peer], "--label", peer, "--addr", address, "--pid", pid, "--secs", str(secs),
            "--tag", tag, "--workload", *workload]


def result(text):
    return json.loads(text.strip().splitlines()[-1]) if text.strip() else {"error": "nothing was said"}


def run(peer, workload, secs, tag):
    server = start(peer)
    try:
        found = result(sh(*command(peer, server, workload, secs, tag), timeout=120).stdout)
    finally:
        sh(LAB / "setup.sh", "stop", peer)
        sh("rm", "-rf", f"{HOME}/data/{peer}")
    if "error" in found:
        print(f"  {peer} {workload}: {found['error']}")
    return found


def catch_up(peer, secs):
    """A catch-up read while 50 followers are live on another session."""
    server = start(peer)
    try:
        alone = result(sh(*command(peer, server, ["W4"], secs, "alone"), timeout=120).stdout)
        beside = subprocess.Popen(command(peer, server, ["W5"], 20, "live"), stdout=subprocess.DEVNULL)
        time.sleep(2)
        crowded = result(sh(*command(peer, server, ["W4"], secs, "crowd"), timeout=120).stdout)
        beside.kill()
        beside.wait()
    finally:
        sh(LAB / "setup.sh", "stop", peer)
    return alone.get("events_per_s", 0), crowded.get("events_per_s", 0)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--reps", type=int, default=3)
    ap.add_argument("--secs", type=float, default=3)
    ap.add_argument("--only", default="")
    a = ap.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    found, began = {}, time.time()
    wanted = [name for name in RUNS if not a.only or name in a.only.split(",")]
    print("load before:", os.getloadavg())
    os.makedirs(f"{HOME}/data", exist_ok=True)
    disk = result(sh(BIN, "disk", "--dir", f"{HOME}/data").stdout)
    print("disk:", disk)
    for rep in range(a.reps):
        for number, name in enumerate(wanted):
            peers, workload, figures = RUNS[name]
            for peer in peers if (rep + number) % 2 == 0 else peers[::-1]:
                values = run(peer, workload, a.secs, f"r{rep}")
                line = {figure: values.get(figure) for figure in figures + ["p50_us", "cpu_s_server", "cpu_s_client"]}
                print(f"  {rep} {name} {peer} {line}", flush=True)
                for figure in figures:
                    if values.get(figure):
                        found.setdefault((name, peer, figure), []).append(values[figure])
    median = {key: statistics.median(values) for key, values in found.items()}
    print("\nmedians")
    for (name, peer, figure), value in median.items():
        print(f"  {name:10} {peer:7} {figure:13} {value:12,.0f}")
    print("\nratios, quipu to the limit")
    for name, figure, limit, what, bound in TARGETS:
        ours, theirs = median.get((name, "quipu", figure)), median.get((name, limit, figure))
        if ours and theirs:
            ratio = ours / theirs
            holds = ratio >= bound if what == "at least" else ratio <= bound
            print(f"  {name:10} {figure:13} {ratio:.2f} of {limit}; wanted {what} {bound}: {'holds' if holds else 'FAILS'}")
    p50, p99 = median.get(("W5x1", "quipu", "p50_us")), median.get(("W5x50", "quipu", "p99_us"))
    if p50 and p99:
        sync = next((value for key, value in disk.items() if "p50" in key), 0)
        print(f"  append to follower, 1 follower, p50 {p50:.0f} us: a sync ({sync} us) and {p50 - sync:.0f}; wanted at most 300")
        print(f"  append to follower, 50 followers, p99 {p99 / 1000:.2f} ms; wanted at most 10 ms")
    if not a.only or "W6" in a.only:
        idle = run("quipu", ["W6"], a.secs, "idle")
        print(f"  W6: {idle.get('kb_per_session_and_tail')} KB for an idle session with its follower; wanted at most 16")
    if not a.only or "W4" in a.only:
        for peer in ["quipu", "null"]:
            alone, crowded = catch_up(peer, a.secs)
            print(f"  catch-up read, {peer}: {alone:,.0f} events/s alone, {crowded:,.0f} beside 50 live followers")
    print(f"\n{time.time() - began:.0f} s; load after: {os.getloadavg()}")


main()
