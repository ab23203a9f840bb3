#!/usr/bin/env bash
# Makes .venv with the package and the extras asked for, at the versions in constraints.txt.
#
#   scripts/bootstrap.sh [EXTRA…]
#
# Run again with nothing changed it does nothing: a stamp holds what was installed and from which
# files. It never goes to the network in that case.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/.bootstrap

say() { printf 'bootstrap: %s\n' "$*" >&2; }

# A candidate counts only if it runs: a pyenv shim may exist on PATH and still refuse to start.
is_usable() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1
}

find_python() {
  local candidate
  for candidate in ${PING_LLM_PYTHON:-} python3.12 python3.13 python3 python; do
    if command -v "$candidate" >/dev/null 2>&1 && is_usable "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  if command -v pyenv >/dev/null 2>&1; then
    for candidate in "$(pyenv root)"/versions/3.12*/bin/python "$(pyenv root)"/versions/3.13*/bin/python; do
      if [ -x "$candidate" ] && is_usable "$candidate"; then
        echo "$candidate"
        return
      fi
    done
  fi
  if command -v uv >/dev/null 2>&1; then
    candidate=$(uv python find '>=3.12' 2>/dev/null) ||
      { uv python install 3.12 >&2 && candidate=$(uv python find '>=3.12'); } || return 1
    echo "$candidate"
    return
  fi
  return 1
}

fingerprint() {
  cat pyproject.toml constraints.txt scripts/bootstrap.sh | cksum
}

# The stamp's first line is the fingerprint, the second the extras, sorted, between spaces.
is_installed() {
  [ -x $VENV/bin/ping-llm ] && [ -f $STAMP ] && [ "$(sed -n 1p $STAMP)" = "$(fingerprint)" ] || return 1
  local extra installed
  installed=$(sed -n 2p $STAMP)
  for extra in "$@"; do
    case "$installed" in *" $extra "*) ;; *) return 1 ;; esac
  done
}

if is_installed "$@"; then
  exit 0
fi

if [ ! -x $VENV/bin/python ] || ! is_usable $VENV/bin/python; then
  if ! python=$(find_python); then
    say "no Python 3.12 or newer runs here: install one (apt install python3.12 python3.12-venv," \
      "pyenv install 3.12, or uv python install 3.12) and try again."
    exit 1
  fi
  say "making $VENV with $python"
  rm -rf $VENV
  "$python" -m venv $VENV
fi

# Extras installed before stay installed: make test after make demo adds to it.
extras=$( (sed -n 2p $STAMP 2>/dev/null | tr ' ' '\n'; printf '%s\n' "$@") | sed '/^$/d' | sort -u)
package=.
[ -z "$extras" ] || package=".[$(echo "$extras" | paste -sd, -)]"

# Bytecode is compiled once here: without it, and with PYTHONDONTWRITEBYTECODE set as in many containers, importing
# MaxText would take twice as long at every launch. pip does so by itself.
uv_install=(pip install --compile-bytecode --python $VENV/bin/python)
if command -v uv >/dev/null 2>&1; then
  installer=(uv "${uv_install[@]}")
elif [ -x $VENV/bin/uv ] || $VENV/bin/python -m pip install -q -c constraints.txt uv >/dev/null 2>&1; then
  installer=($VENV/bin/uv "${uv_install[@]}")
else
  installer=($VENV/bin/python -m pip install)
fi
say "installing $package with ${installer[0]}"
"${installer[@]}" -q -c constraints.txt -e "$package"
printf '%s\n %s \n' "$(fingerprint)" "$(echo "$extras" | paste -sd' ' -)" >$STAMP
say "ready: $VENV/bin/ping-llm"
