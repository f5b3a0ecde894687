#!/usr/bin/env bash
# scripts/run/down.sh [--quiet]: stop the processes that up.sh started, and no others: routers first, then agents (which stop their engines).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_run.sh"
quiet=${1:-}
tell() { [ "$quiet" = --quiet ] || say "$@"; }

stop() {
	local pid _start i
	is_running "$1" || { rm -f "$RUN/$1.pid"; return 0; }
	read -r pid _start < "$RUN/$1.pid"
	kill -TERM "$pid" 2>/dev/null || true
	for i in $(seq 100); do
		is_running "$1" || break
		[ "$i" != 50 ] || kill -TERM "$pid" 2>/dev/null || true # a second TERM ends the wait for open requests
		sleep 0.1
	done
	if is_running "$1"; then kill -KILL "$pid" 2>/dev/null || true; fi
	rm -f "$RUN/$1.pid"
	tell "stopped $1"
}

mapfile -t all < <(names)
[ "${#all[@]}" -gt 0 ] || { tell "nothing is running"; exit 0; }
for name in "${all[@]}"; do case $name in router*) stop "$name" ;; esac; done
for name in "${all[@]}"; do case $name in router*) ;; *) stop "$name" & ;; esac; done
wait
