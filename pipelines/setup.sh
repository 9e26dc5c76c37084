#!/usr/bin/env bash
# Set up .venv, for the demo or for the checks; run again, it does only what is left.
#
#   pipelines/setup.sh demo|test      or rather: make demo, make test
#
# Hears: PYTHON (default python3), CUDA (12 or 13; default: what the driver runs, else 13), CC.
# Leaves in .venv: setup.log, pillow-simd.log, and .ready-demo or .ready-test when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:?usage: setup.sh demo|test}
venv_python=.venv/bin/python
pillow_shim=pipelines/pillow-shim
linux_x86=$([ "$(uname -sm)" = "Linux x86_64" ] && echo yes || echo no)

say() { printf 'set-up: %s\n' "$*"; }
fail() {
  printf 'set-up: %s\n' "$*" >&2
  exit 1
}

# ---- the virtual environment

minor_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

check_python() {
  local version
  version=$(minor_version "$1") || fail "$1 does not run; name a Python of 3.11 or newer: make PYTHON=python3.12 $purpose"
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed and $1 is $version; name a newer one: make PYTHON=python3.12 $purpose"
  "$1" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$1 lacks its venv module; install it (Debian, Ubuntu: apt install python$version-venv) and run again"
}

venv_is_usable() {
  [ ! -e .venv/.making ] || return 1
  [ ! -e .venv/.place ] || [ "$(cat .venv/.place)" = "$PWD" ] || return 1
  [ -z "${PYTHON:-}" ] || [ "$(minor_version "$PYTHON")" = "$(minor_version $venv_python)" ] || return 1
  # The packages for CUDA 12 and 13 overwrite each other's files.
  [ -z "${CUDA:-}" ] || [ ! -e .venv/.cuda ] || [ "$(cat .venv/.cuda)" = "$CUDA" ] || return 1
  $venv_python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

make_venv() {
  local python=${PYTHON:-python3}
  check_python "$python"
  say "making .venv with $("$python" --version)"
  rm -rf .venv
  mkdir .venv
  touch .venv/.making
  "$python" -m venv .venv
  pwd >.venv/.place
  rm .venv/.making
}

# A package is whole when its RECORD, written last, is there, and each file in it at its size.
forget_half_installed() {
  $venv_python - <<'PY'
import csv
import pathlib
import shutil
import sysconfig

site = pathlib.Path(sysconfig.get_path("purelib"))
for info in [*site.glob("*.dist-info"), *site.glob("~*")]:
    try:
        rows = list(csv.reader((info / "RECORD").open(newline="")))
        whole = all((site / row[0]).stat().st_size == int(row[2] or (site / row[0]).stat().st_size) for row in rows)
    except (OSError, ValueError, IndexError):
        whole = False
    if not whole and not info.name.startswith("pip-"):
        shutil.rmtree(info, ignore_errors=True)
PY
}

# Name each distribution that has files of PIL, with its version; pillow-shim has none.
pil_owners() {
  $venv_python - <<'PY'
import importlib.metadata

for name in ("pillow", "pillow-simd"):
    for distribution in importlib.metadata.distributions(name=name):
        if any(file.parts[0] == "PIL" for file in distribution.files or ()):
            print(name, distribution.version)
PY
}

has_one_pil() { [ "$(pil_owners | grep -c .)" = 1 ]; }

quiet_pip() { $venv_python -m pip "$@" --disable-pip-version-check --no-input >>.venv/setup.log 2>&1; }

# Names the downloads that take a while; all of pip's words go to the log.
pip_install() {
  local pins=constraints.txt
  if [ "$pillow" = pillow ]; then pins=constraints-pillow.txt; fi
  $venv_python -m pip install --disable-pip-version-check --no-input -c $pins "$@" 2>&1 |
    tee -a .venv/setup.log | while IFS= read -r line; do
    if [[ $line =~ Downloading\ ([^-/]+)-([^-]+)-.*\ \(([0-9.]+\ [MG]B)\) ]]; then
      say "  downloading ${BASH_REMATCH[1]} ${BASH_REMATCH[2]}, ${BASH_REMATCH[3]}"
    elif [[ $line == "Installing collected packages:"* ]]; then
      say "  installing $(echo "${line#*:}" | wc -w | tr -d ' ') packages"
    fi
  done
}

# ---- which Pillow, which CUDA

compiles() { printf '%s\n' "$1" | ${CC:-cc} -x c - "${@:2}" -o .venv/.probe >/dev/null 2>&1; }

# Name what pillow-simd would need to be compiled and is not here; nothing when all is.
missing_for_simd() {
  local include
  include=$($venv_python -c 'import sysconfig; print(sysconfig.get_path("include"))')
  if ! compiles 'int main(void) { return 0; }'; then
    echo "C compiler (gcc)"
  elif ! compiles '#include <Python.h>' -c "-I$include"; then
    echo "Python headers (python3-dev)"
  elif ! compiles '#include <zlib.h>
int main(void) { return zlibVersion() == 0; }' -lz; then
    echo "zlib headers (zlib1g-dev)"
  elif ! compiles '#include <stdio.h>
#include <jpeglib.h>
int main(void) { struct jpeg_error_mgr e; return jpeg_std_error(&e) == 0; }' -ljpeg; then
    echo "JPEG headers (libjpeg-dev)"
  fi
  rm -f .venv/.probe
}

install_pillow_simd() {
  local flags=""
  if grep -qsw avx2 /proc/cpuinfo; then flags="-mavx2"; fi
  say "compiling pillow-simd${flags:+ for AVX2} (about a minute)"
  # No cache: a wheel compiled earlier, without AVX2, would be taken from there.
  CC="${CC:-cc} $flags" $venv_python -m pip install --disable-pip-version-check --no-input --no-cache-dir \
    --no-binary pillow-simd -c constraints.txt pillow-simd >.venv/pillow-simd.log 2>&1
}

# A copy is built, since setuptools leaves its traces beside what it builds.
install_pillow_shim() {
  rm -rf .venv/pillow-shim
  cp -R $pillow_shim .venv/pillow-shim
  quiet_pip install --no-deps ./.venv/pillow-shim ||
    fail "$pillow_shim could not be installed (see the end of .venv/setup.log); run the same command again to go on"
}

has_pinned_simd() { [ "$(pil_owners)" = "$(sed -n 's/^pillow-simd==/pillow-simd /p' constraints.txt)" ]; }

# Get pillow-simd if it can be had, or say why not.
settle_pillow_simd() {
  local missing
  if has_pinned_simd; then return 0; fi
  missing=$(missing_for_simd)
  if [ -n "$missing" ]; then
    say "no $missing here, so plain Pillow takes the place of pillow-simd; it is slower, and that is all."
    return 1
  fi
  quiet_pip uninstall -y pillow pillow-simd
  if install_pillow_simd; then return 0; fi
  say "pillow-simd could not be compiled (see .venv/pillow-simd.log), so plain Pillow takes its place."
  return 1
}

# Leave at most one PIL, and set $pillow to the extra that names it.
settle_pillow() {
  pillow=pillow
  if [ "$linux_x86" = yes ] && settle_pillow_simd; then
    pillow=simd
    install_pillow_shim
  elif [[ $(pil_owners) == *simd* ]]; then
    quiet_pip uninstall -y pillow pillow-simd
  fi
}

# What was settled can be bettered once a compiler has come, or spoiled by a pip of one's own.
pillow_is_settled() {
  has_one_pil || return 1
  [ ! -e .venv/.without-simd ] || [ "$(missing_for_simd)" = "$(cat .venv/.without-simd)" ]
}

chosen_cuda() {
  local driver
  driver=$(nvidia-smi 2>/dev/null | sed -nE 's/.*CUDA[A-Za-z ]*Version: *([0-9]+).*/\1/p' | head -n 1) || true
  if [ -n "${CUDA:-}" ]; then
    echo "$CUDA"
  elif [ -s .venv/.cuda ]; then
    cat .venv/.cuda
  elif [ -n "$driver" ] && [ "$driver" -lt 13 ]; then
    echo 12
  else
    echo 13
  fi
}

# ---- the whole

fingerprint() {
  { cat pyproject.toml constraints*.txt pipelines/setup.sh $pillow_shim/pyproject.toml && echo "$cuda"; } | cksum
}

is_ready() {
  local stamp
  for stamp in ".venv/.ready-$purpose" .venv/.ready-test; do
    if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ]; then
      pillow_is_settled
      return
    fi
  done
  return 1
}

install_all() {
  local extras=workflow,$pillow,load
  if [ "$(uname -s)" = Linux ]; then extras=$extras,cuda$cuda; fi
  if [ "$purpose" = test ]; then extras=$extras,s3,dev; fi
  say "installing ingest[$extras]: some minutes the first time, log in .venv/setup.log"
  if ! pip_install -e ".[$extras]"; then
    tail -n 12 .venv/setup.log >&2
    fail "pip could not install it all (above: the end of .venv/setup.log); run the same command again to go on"
  fi
}

check_result() {
  if ! has_one_pil; then
    fail "one Pillow is expected, found: $(pil_owners | paste -sd, - | grep . || echo none): make clean, then run again"
  fi
  $venv_python -c 'import PIL.Image' || fail "PIL cannot be imported: make clean, then run again"
  $venv_python -m pip check >>.venv/setup.log || fail "packages disagree: .venv/bin/pip check says which"
}

# pip outlives a killed set-up and holds the lock with it; two at once would spoil each other's work.
wait_for_others() {
  if ! command -v flock >/dev/null; then return 0; fi
  exec 9<.
  if flock -n 9; then return 0; fi
  say "waiting for a set-up that is still at work here"
  flock 9
}

main() {
  case $purpose in demo | test) ;; *) fail "usage: setup.sh demo|test" ;; esac
  case ${CUDA:-13} in 12 | 13) ;; *) fail "CUDA is $CUDA; it can be 12 or 13" ;; esac
  wait_for_others
  if ! venv_is_usable; then make_venv; fi
  cuda=$(chosen_cuda)
  if is_ready; then
    say "nothing to do, .venv is up to date"
    return
  fi
  if [ -e .venv/.unfinished ]; then
    say "going on where the last set-up was interrupted"
    forget_half_installed
  fi
  touch .venv/.unfinished
  echo "$cuda" >.venv/.cuda
  rm -f .venv/.ready-* .venv/.without-simd
  settle_pillow
  install_all
  check_result
  if [ "$pillow" = pillow ] && [ "$linux_x86" = yes ]; then missing_for_simd >.venv/.without-simd; fi
  fingerprint >".venv/.ready-$purpose"
  rm .venv/.unfinished
  say "done in $SECONDS s"
}

main
