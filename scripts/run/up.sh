#!/usr/bin/env bash
# scripts/run/up.sh RECIPE-DIR: start one cgn-router from router.toml, one cgn-agent from each agent-*.toml, and one cgn-kvcached for agent-NAME
# from each kv-NAME.toml; wait until every node is ready. On a failure, print which program failed and why, and stop all of them.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_run.sh"
take_help "" 1 "$@"
[ $# = 1 ] || refuse_usage "RECIPE-DIR is missing"
dir=$1
[ -f "$dir/router.toml" ] || die "$dir has no router.toml"
agents=("$dir"/agent-*.toml)
[ -f "${agents[0]}" ] || die "$dir has no agent-*.toml"
stores=("$dir"/kv-*.toml)
[ -f "${stores[0]}" ] || stores=()
for program in cgn-router cgn-agent ${stores[0]:+cgn-kvcached}; do
	[ -x "$BIN/$program" ] || die "$BIN/$program does not exist; build first (scripts/up does), or set CGN_BIN to the folder of the programs"
done

for name in $(names); do
	is_running "$name" && die "a cluster is already running ($name, in $RUN); scripts/down stops it"
done
rm -rf "$RUN"
mkdir -p "$RUN/state" && chmod 700 "$RUN"
printf '%s\n' "$dir" > "$RUN/recipe"
export PATH="$BIN:$PATH" COGNITORA__CLUSTER__STATE_DIR="$RUN/state"
if [ -f "$dir/prepare.sh" ]; then . "$dir/prepare.sh"; fi

fail() { # NAME: print the last line of its log, then stop the other programs
	{ grep -v '^{' "$RUN/$1.log" || grep -E '"level":"(warn|error)"' "$RUN/$1.log"; } | tail -n 1 >&2 || true
	"$ROOT/scripts/run/down.sh" --quiet
	die "$1 did not start; its log was kept: $RUN/$1.log"
}

start() { # NAME PROGRAM CONFIG: start it, with its certificate if prepare.sh made one
	local security=()
	[ ! -f "$RUN/pki/$1.pem" ] || security=(COGNITORA__SECURITY__REQUIRE_MTLS=true COGNITORA__SECURITY__CA_FILE="$RUN/pki/ca.pem"
		COGNITORA__SECURITY__CERT_FILE="$RUN/pki/$1.pem" COGNITORA__SECURITY__KEY_FILE="$RUN/pki/$1.key")
	env ${security[@]+"${security[@]}"} "$BIN/$2" --config "$3" >>"$RUN/$1.log" 2>&1 </dev/null &
	remember "$1" $!
}

value() { # CONFIG KEY: print the value in the program's effective configuration
	"$BIN/cgn-router" --check --config "$1" | sed -n "s/^ *$2 *= *\"\([^\"]*\)\".*/\1/p" | head -n 1
}
"$BIN/cgn-router" --check --config "$dir/router.toml" >/dev/null || die "$dir/router.toml is not valid"
http=$(value "$dir/router.toml" listen); admin=$(value "$dir/router.toml" listen_admin)
printf 'http://127.0.0.1:%s\n' "${http##*:}" > "$RUN/http"
printf 'http://%s\n' "$admin" > "$RUN/admin"

step "starting $(realpath --relative-to="$ROOT" "$dir"): one router, ${#agents[@]} agents"
limit=$((SECONDS + ${CGN_UP_TIMEOUT:-120}))
start router cgn-router "$dir/router.toml"
for toml in ${stores[@]+"${stores[@]}"}; do
	name=$(basename "$toml" .toml)
	COGNITORA__KV__UDS=$RUN/$name.sock COGNITORA__KV__SSD_DIR=$RUN/$name.ssd start "$name" cgn-kvcached "$toml"
	until [ -S "$RUN/$name.sock.bulk" ]; do
		is_running "$name" || fail "$name"
		[ "$SECONDS" -lt "$limit" ] || { say "$name does not listen after ${CGN_UP_TIMEOUT:-120} s" >&2; fail "$name"; }
		sleep 0.05
	done
done
for toml in "${agents[@]}"; do
	name=$(basename "$toml" .toml) node=${toml##*/agent-}
	if [ -f "$dir/kv-$node" ]; then
		COGNITORA__AGENT__KV_UDS=$RUN/kv-${node%.toml}.sock COGNITORA__ENGINE__SLOT_DIR=$RUN/$name.slots start "$name" cgn-agent "$toml"
	else
		COGNITORA__AGENT__KV_UDS='' start "$name" cgn-agent "$toml"
	fi
done

ready=0
until [ "$ready" = "${#agents[@]}" ]; do
	for name in $(names); do is_running "$name" || fail "$name"; done
	[ "$SECONDS" -lt "$limit" ] || { say "only $ready of ${#agents[@]} nodes became ready in ${CGN_UP_TIMEOUT:-120} s" >&2; fail "$(basename "${agents[0]}" .toml)"; }
	sleep 0.1
	ready=$({ curl -fsS -m 2 "$(cat "$RUN/admin")/nodes" 2>/dev/null || true; } | { grep -o '"state": *"ready"' || true; } | wc -l)
done
step "$ready nodes are ready; logs are in $RUN"
