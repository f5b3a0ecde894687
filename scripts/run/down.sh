#!/usr/bin/env bash
# scripts/down [--quiet] [--json] [RECIPE]: stop the processes that scripts/up (or a recipe's up.sh) started, and no others: routers first,
# then agents, which stop their engines. May be run again. With RECIPE: only if that recipe is the one that runs, else exit 1.
# --json prints {"recipe": ..., "stopped": [...]}.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_run.sh"
take_help "--quiet --json" 1 "$@"
quiet='' json='' wanted=''
for arg in "$@"; do
	case $arg in --quiet) quiet=1 ;; --json) json=1 quiet=1 ;; *) wanted=$arg ;; esac
done
tell() { [ -n "$quiet" ] || say "$@"; }
stopped=()

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

running=$(recipe_running)
mapfile -t all < <(names)
if [ -n "$wanted" ]; then
	wanted=${wanted%/}
	[ -n "$running" ] || { [ -n "$quiet" ] || say "nothing is running"; [ -z "$json" ] || say '{"recipe":null,"stopped":[]}'; exit 0; }
	[ "$wanted" = "$running" ] || die "$wanted does not run: $running does; 'scripts/down $running' stops that"
fi
for name in "${all[@]}"; do is_running "$name" && stopped+=("$name"); done
[ "${#all[@]}" -gt 0 ] || tell "nothing is running"
for name in "${all[@]}"; do case $name in router*) stop "$name" ;; esac; done
for name in "${all[@]}"; do case $name in router*) ;; *) stop "$name" & ;; esac; done
wait
if [ -n "$json" ]; then
	list=$(for name in ${stopped[@]+"${stopped[@]}"}; do json_text "$name"; printf ,; done)
	printf '{"recipe":%s,"stopped":[%s]}\n' "$([ -n "$running" ] && json_text "$running" || printf null)" "${list%,}"
fi
