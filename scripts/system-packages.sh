#!/usr/bin/env bash
# Install what pip cannot, for the tests that need it: Slurm, Java for Spark, and a browser for the
# page of `ping-llm serve`. Debian or Ubuntu, as root.
# Programs that are installed already are left alone.
set -euo pipefail

wanted=()
command -v sbatch >/dev/null && command -v slurmctld >/dev/null && command -v munged >/dev/null || wanted+=(slurm-wlm munge)
command -v java >/dev/null || wanted+=(openjdk-17-jre-headless)
command -v chromium >/dev/null || wanted+=(chromium)
[ ${#wanted[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "system-packages: install ${wanted[*]} (as root, with apt-get or its like); without them their tests are skipped." >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends "${wanted[@]}" >/dev/null
