# Shared by scripts/run/{up,down,status,hello}.sh: the places of a running cluster's pids, logs and addresses. Sourced, not run.
. "$(dirname "${BASH_SOURCE[0]}")/../_lib.sh"
RUN=${CGN_RUN_DIR:-${XDG_RUNTIME_DIR:-/tmp}/cognitora-$(id -u)}
BIN=${CGN_BIN:-$ROOT/build/release/bin}

# Print the kernel's start time of a process. Pid and start time identify one process for ever, so a recycled pid is never signalled.
started_at() { awk '{ sub(/.*\) /, ""); print $20 }' "/proc/$1/stat" 2>/dev/null; }

# remember NAME PID: write the pid file.
remember() { printf '%s %s\n' "$2" "$(started_at "$2")" > "$RUN/$1.pid"; }

# is_running NAME: succeed if the process that was started under this name is alive.
is_running() {
	local pid start
	read -r pid start < "$RUN/$1.pid" 2>/dev/null || return 1
	[ -n "$start" ] && [ "$(started_at "$pid")" = "$start" ]
}

names() { local f; for f in "$RUN"/*.pid; do [ -f "$f" ] && basename "$f" .pid; done; }

# Print the recipe that was started last and is not stopped yet, as recipes/ names it; nothing when there is none.
recipe_running() {
	[ -f "$RUN/recipe" ] && [ -n "$(names)" ] || return 0
	realpath -m --relative-to="$ROOT/recipes" "$(cat "$RUN/recipe")"
}

# Print a text as a JSON string.
json_text() { printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\037' | sed 's/[\\"]/\\&/g')"; }

# curl_lines MODEL: print commands to try.
curl_lines() {
	local url
	url=$(cat "$RUN/http")
	cat <<-EOF

	Try it yourself:
	  curl $url/v1/models
	  curl -N $url/v1/chat/completions -H 'Content-Type: application/json' \\
	    -d '{"model":"$1","stream":true,"max_tokens":24,"messages":[{"role":"user","content":"Hello! Who are you?"}]}'

	Page:   $(cat "$RUN/admin")/
	Nodes:  cgn-ctl top, or curl $(cat "$RUN/admin")/nodes
	Stop:   scripts/down
	EOF
}
