#!/usr/bin/env bash
# install-packages.sh [LIST [PURPOSE]]: installs the Debian packages that are missing of LIST, by default packages.txt beside it.
# Never fails: what needs them says so, and without those of packages.txt simulated nodes take over.
set -uo pipefail
list=${1:-$(dirname "$0")/packages.txt}
purpose=${2:-real nodes; simulated ones take over without them}
missing=()
while read -r package; do
  [ -z "$package" ] || dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
done <"$list"
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: missing: ${missing[*]} (as root: apt-get install ${missing[*]}), for $purpose"
  exit 0
fi
echo "setup: apt-get install ${missing[*]}, for $purpose"
export DEBIAN_FRONTEND=noninteractive
# The packages' daemons (containerd's own service) are not to be started on this machine.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; } ||
  echo "setup: apt-get could not install ${missing[*]}, for $purpose"
