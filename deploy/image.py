"""Builds the image and runs it as the rendered StatefulSet says: user, read-only root, arguments, ports, volume.

Registries cannot be asked here, so the two base images of the Dockerfile are stand-ins that are made from this machine
under the very names that it uses: a "rust" whose cargo hands out the binary that was built already, and a "distroless"
with the libraries that it links to. The Dockerfile itself is used as it is.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "target/tools"
BUILDAH = TOOLS / "buildah/usr/bin/buildah"
LIBRARIES = [TOOLS / "buildah/usr/lib/x86_64-linux-gnu", TOOLS / "buildah/lib/x86_64-linux-gnu"]


def skip(why):
    print(f"SKIPPED: the image: {why}")


def libraries(program):
    text = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    words = [word for line in text.splitlines() for word in line.split() if word.startswith("/")]
    return [Path(word) for word in words]


def put(root, path, source, mode=0o755):
    target = root / str(path).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, str):
        target.write_text(source)
    else:
        shutil.copy(source, target)
    target.chmod(mode)


def with_libraries(root, path, source):
    put(root, path, source)
    for library in libraries(source):
        put(root, library, library)


class Builder:
    def __init__(self, home):
        self.home = home
        policy = home / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        registries = home / "registries.conf"
        registries.write_text("unqualified-search-registries = []\n")
        self.flags = ["--root", home / "root", "--runroot", home / "run", "--storage-driver", "vfs"]
        self.flags += ["--registries-conf", registries]
        self.policy = ["--signature-policy", policy]
        paths = ":".join(str(path) for path in LIBRARIES)
        self.environment = {**os.environ, "LD_LIBRARY_PATH": paths, "BUILDAH_ISOLATION": "chroot"}

    def __call__(self, *command):
        command = [str(part) for part in [BUILDAH, *self.flags, *command]]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=ROOT)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout.strip()

    def base(self, name, fill):
        container = self("from", *self.policy, "scratch")
        fill(Path(self("mount", container)))
        self("config", "--env", "PATH=/usr/local/cargo/bin:/usr/bin:/bin", container)
        self("commit", *self.policy, "--quiet", container, name)
        self("rm", container)


def build(home, binary):
    buildah = Builder(home)

    def rust(root):
        for program in ("sh", "cp", "mkdir"):
            with_libraries(root, f"/bin/{program}", Path(shutil.which(program)).resolve())
        put(root, "/prebuilt/quipu", binary)
        cargo = '#!/bin/sh\n[ "$*" = "build --release --locked --bin quipu" ] || exit 9\n'
        cargo += "[ -f Cargo.lock ] && [ -f src/main.rs ] && [ -d proto/quipu ] || exit 8\n"
        put(root, "/usr/local/cargo/bin/cargo", cargo + "mkdir -p target/release\ncp /prebuilt/quipu target/release/quipu\n")

    def distroless(root):
        for library in libraries(binary):
            put(root, library, library)
        put(root, "/etc/passwd", "nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n", 0o644)
        put(root, "/etc/nsswitch.conf", "hosts: files dns\n", 0o644)

    stages = [line.split()[1] for line in (ROOT / "deploy/Dockerfile").read_text().splitlines() if line.startswith("FROM")]
    for name, fill in zip(stages, (rust, distroless), strict=True):
        buildah.base(name, fill)
    buildah("bud", *buildah.policy, "--pull-never", "--quiet", "-t", "quipu:test", "-f", "deploy/Dockerfile", ".")
    config = json.loads(buildah("inspect", "--type", "image", "quipu:test"))["OCIv1"]["config"]
    container = buildah("from", *buildah.policy, "--pull-never", "quipu:test")
    return config, Path(buildah("mount", container))


def check(binary, stateful, toml):
    if os.geteuid() != 0:
        return skip("needs root")
    if not BUILDAH.exists():
        return skip("no buildah under target/tools")
    namespaces = subprocess.run(["unshare", "-m", "-n", "true"], capture_output=True, text=True)
    if namespaces.returncode != 0:
        return skip(f"no namespaces: {namespaces.stderr.strip()}")
    # Not in the working tree: vfs copies whole layers.
    with tempfile.TemporaryDirectory(prefix="quipu-image-") as home:
        home = Path(home)
        config, root = build(home, binary)
        container = stateful["spec"]["template"]["spec"]["containers"][0]
        user = stateful["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
        if config["User"] != f"{user}:{user}":
            sys.exit(f"FAILED: the image runs as {config['User']}, the chart as {user}")
        print(f"image: built, user {config['User']}, entrypoint {config['Entrypoint']}")
        given = {
            "root": str(root),
            "home": str(home),
            "binary": str(binary),
            "user": user,
            "command": config["Entrypoint"] + container["args"],
            "environment": dict(pair.split("=", 1) for pair in config.get("Env", [])),
            "probes": {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")},
            "ports": {port["name"]: port["containerPort"] for port in container["ports"]},
            "grace": stateful["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
            "toml": toml,
        }
        command = ["unshare", "-m", "-n", sys.executable, __file__]
        done = subprocess.run(command, input=json.dumps(given), text=True)
        if done.returncode != 0:
            sys.exit("FAILED: the image does not run as the chart says")


class Pod:
    """The root of the image as a container would have it. Runs in a network of its own, like a pod."""

    def __init__(self, given, name, is_apart):
        self.given, self.lines = given, []
        root, user = given["root"], given["user"]
        command = [shutil.which("chroot"), f"--userspec={user}:{user}", "--groups=", root, *given["command"]]
        # Process 1 of its container, as in a pod: signals without a handler would not reach it.
        apart = ["--net"] if is_apart else []
        command = [shutil.which("unshare"), "--pid", "--fork", "--kill-child", *apart, *command]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=given["environment"])
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.child.stderr.readline, "")), daemon=True)
        self.name = name
        self.reader.start()

    def wait_for(self, message, seconds=60):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if any(f'"message":"{message}' in line for line in self.lines):
                return
            if self.child.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"{self.name}: no {message!r} in\n{''.join(self.lines)}")

    def process(self):
        """The server, as this side numbers it."""
        parent = self.child.pid
        return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])

    def end(self, seconds):
        began = time.monotonic()
        os.kill(self.process(), signal.SIGTERM)
        code = self.child.wait(seconds)
        if code != 0:
            sys.exit(f"{self.name}: ended with {code}\n{''.join(self.lines)}")
        self.reader.join(10)
        if not any('"message":"closed"' in line for line in self.lines):
            sys.exit(f"{self.name}: no last line\n{''.join(self.lines)}")
        return time.monotonic() - began


def ask(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def up():
    """The loopback of the new network."""
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))


def inside():
    given = json.load(sys.stdin)
    root, user = Path(given["root"]), given["user"]
    run = lambda *command: subprocess.run(command, check=True)
    up()
    run("mount", "--make-rprivate", "/")
    run("mount", "--bind", root, root)
    data, settings = Path(given["home"]) / "data", Path(given["home"]) / "settings"
    data.mkdir()
    settings.mkdir()
    (settings / "quipu.toml").write_text(given["toml"])
    # What fsGroup does to a volume.
    os.chown(data, user, user)
    for source, target in ((data, root / "data"), (settings, root / "etc/quipu")):
        target.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", source, target)
    run("mount", "-o", "remount,bind,ro", root)
    ports = given["ports"]

    first = Pod(given, "the first pod", is_apart=False)
    first.wait_for("serving")
    for probe, path in given["probes"].items():
        until = time.monotonic() + 30
        while ask(ports["metrics"], path)[0] != 200:
            if time.monotonic() > until:
                sys.exit(f"{probe} is not good: {ask(ports['metrics'], path)}")
            time.sleep(0.05)
    owner = Path(f"/proc/{first.process()}/status").read_text()
    if f"Uid:\t{user}\t{user}" not in owner:
        sys.exit("it does not run as the user of the chart")
    client = [given["binary"]]
    address = ["--address", f"http://127.0.0.1:{ports['grpc']}"]
    quipu = lambda *args, **more: subprocess.run(
        [*client, *args, *address], check=True, capture_output=True, text=True, **more
    ).stdout
    quipu("create", "s", "--profile", "raw")
    quipu("append", "s", "--first-seq", "0", input='{"type":"note","time":1,"data":1}\n')
    # The next pod comes while this one still has the volume: it waits.
    second = Pod(given, "the second pod", is_apart=True)
    second.wait_for("waiting for another process")
    took = first.end(given["grace"])
    second.wait_for("serving")
    second.end(given["grace"])
    third = Pod(given, "the third pod", is_apart=False)
    third.wait_for("serving")
    events = quipu("read", "s", "--json").splitlines()
    if len(events) != 1:
        sys.exit(f"the event that was acknowledged is not there: {events}")
    third.end(given["grace"])
    print(f"image: runs as the chart says; drained in {took:.1f} s of {given['grace']}; the next pod waited and took over")


if __name__ == "__main__":
    inside()
