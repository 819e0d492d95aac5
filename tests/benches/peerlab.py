#!/usr/bin/env python3
"""Puts quipu beside the peers of a peer load generator and runs them in one run.

  tests/benches/peerlab.py PEERLAB_DIR [bench.py arguments, e.g. --peers null,gc,quipu --workloads W1,W2,W3,W4]

Builds the release binary and a copy of the generator under target/peerlab with our adapter (quipu.rs beside this file)
added in its four places. Only ratios within one run mean anything. KEEP=limit,redis,pg builds only those adapters,
which needs minutes less."""
import os, re, shutil, subprocess, sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LAB = ROOT / "target" / "peerlab"
CRATES = {"nats": "async-nats", "etcd": "etcd-client", "local": "rusqlite", "s2": "s2-sdk", "pg": "tokio-postgres"}
LOCAL_NAMES = {"local": ["sqlite", "jsonl"], "limit": ["limit"]}


def patch(path, *changes):
    text = path.read_text()
    for before, after in changes:
        if before not in text:
            sys.exit(f"{path}: {before!r} is not there; the generator changed")
        text = text.replace(before, after, 1)
    path.write_text(text)


def leave_out(names):
    """Removes adapters and their crates."""
    modules, manifest = LAB / "src/adapters/mod.rs", LAB / "Cargo.toml"
    text, crates = modules.read_text(), manifest.read_text()
    for name in names:
        text = text.replace(f"mod {name};\n", "")
        for peer in LOCAL_NAMES.get(name, [name]):
            text = re.sub(rf'        "{peer}" => .*\n', "", text)
        if name in CRATES:
            crates = re.sub(rf"{CRATES[name]} = .*\n", "", crates)
    modules.write_text(text)
    manifest.write_text(crates)
    (LAB / "Cargo.lock").unlink(missing_ok=True)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    shutil.rmtree(LAB, ignore_errors=True)
    shutil.copytree(sys.argv[1], LAB, copy_function=shutil.copyfile)
    os.chmod(LAB / "setup.sh", 0o755)
    shutil.copyfile(HERE / "quipu.rs", LAB / "src/adapters/quipu.rs")
    proto = ROOT / "proto"
    files = ", ".join(f'"{proto}/quipu/v1/{name}.proto"' for name in ("types", "errors", "session", "log"))
    patch(LAB / "src/adapters/mod.rs", ("mod redis;", "mod quipu;\nmod redis;"),
          ('        "redis" =>', '        "quipu" => Arc::new(quipu::open(a).await?),\n        "redis" =>'))
    patch(LAB / "build.rs", ("    Ok(())", f'    tonic_prost_build::configure().bytes(".").build_server(false)\n'
                             f'        .compile_protos(&[{files}], &["{proto}"])?;\n    Ok(())'))
    patch(LAB / "setup.sh", ("    gcgrow)", '    quipu)   port=4130; bg $p "$QUIPU_BIN" serve --data-dir "$d" '
                             '--listen 127.0.0.1:$port --log warn ;;\n    gcgrow)'))
    patch(LAB / "bench.py", ('    "gcgrow": ', '    "quipu":      ("quipu", "quipu", [], ["W1", "W2", "W3", "W4", "W5", "W6", "W7", "W7b"]),\n'
                             '    "gcgrow": '))
    if "KEEP" in os.environ:
        every = re.findall(r"mod (\w+);", (LAB / "src/adapters/mod.rs").read_text())
        leave_out(set(every) - set(os.environ["KEEP"].split(",")) - {"quipu", "limit", "resp"})
    home = os.environ.setdefault("PEERLAB_HOME", str(ROOT / "target" / "peerlab-home"))
    os.environ["QUIPU_BIN"] = str(ROOT / "target/release/quipu")
    subprocess.run(["cargo", "build", "--release", "--locked"], cwd=ROOT, check=True)
    subprocess.run(["cargo", "build", "--release"], cwd=LAB, check=True,
                   env={**os.environ, "CARGO_TARGET_DIR": f"{home}/tgt-harness"})
    subprocess.run([sys.executable, "bench.py", *sys.argv[2:]], cwd=LAB, check=True)


main()
