#!/usr/bin/env bash
# scripts/run/up.sh RECIPE-DIR: start one cgn-router from router.toml, one cgn-agent from each agent-*.toml, and the block stores: one cgn-kvcached
# for agent-NAME from each kv-NAME.toml, or one for all agents from kvcached.toml. With state_backend = "etcd", an etcd at the configured
# address is used, or started when the address is of this machine. Waits until every model gives a real answer, then prints curl lines.
# On a failure, print which program failed and why, and stop all of them.
# CGN_UP_TIMEOUT: longest wait in seconds (900). CGN_HEARTBEAT: seconds between two lines of progress (10).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_run.sh"
take_help "" 1 "$@"
[ $# = 1 ] || refuse_usage "RECIPE-DIR is missing"
dir=$1
[ -f "$dir/router.toml" ] || die "$dir has no router.toml"
agents=("$dir"/agent-*.toml)
[ -f "${agents[0]}" ] || die "$dir has no agent-*.toml"
stores=()
for toml in "$dir"/kvcached.toml "$dir"/kv-*.toml; do [ ! -f "$toml" ] || stores+=("$toml"); done
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
	{ grep -v '^{' "$RUN/$1.log" || grep -E '"level":"(warn|error)"' "$RUN/$1.log"; } 2>/dev/null | tail -n 1 >&2 || true
	give_up "$1 did not start; its log was kept: $RUN/$1.log"
}
give_up() { # TEXT: stop all programs
	"$ROOT/scripts/run/down.sh" --quiet
	die "$1"
}
limit=$((SECONDS + ${CGN_UP_TIMEOUT:-900}))
late() { [ "$SECONDS" -ge "$limit" ]; }

start() { # NAME PROGRAM CONFIG: start it, with its certificate if prepare.sh made one
	local security=()
	[ ! -f "$RUN/pki/$1.pem" ] || security=(COGNITORA__SECURITY__REQUIRE_MTLS=true COGNITORA__SECURITY__CA_FILE="$RUN/pki/ca.pem"
		COGNITORA__SECURITY__CERT_FILE="$RUN/pki/$1.pem" COGNITORA__SECURITY__KEY_FILE="$RUN/pki/$1.key")
	env ${security[@]+"${security[@]}"} "$BIN/$2" --config "$3" >>"$RUN/$1.log" 2>&1 </dev/null &
	remember "$1" $!
}

# ---- etcd ----
etcd_answers() { curl -fsS -m 2 "$1/health" 2>/dev/null | grep -q '"health": *"true"'; }

# Use the etcd at the first endpoint of router.toml; start one there when none answers and the address is of this machine.
etcd_ready() {
	local url=$1 program
	if etcd_answers "$url"; then step "using the etcd at $url"; return 0; fi
	case $url in http://127.0.0.1:*|http://localhost:*) ;; *) die "no etcd answers at $url (cluster.etcd_endpoints of $dir/router.toml)" ;; esac
	program=$(command -v etcd) || die "no etcd answers at $url, and there is no program 'etcd' to start; install it (apt install etcd-server)"
	step "starting etcd at $url"
	# A single member: nobody connects to its port for peers, which may be any.
	"$program" --name recipe --data-dir "$RUN/etcd" --listen-client-urls "$url" --advertise-client-urls "$url" \
		--listen-peer-urls http://127.0.0.1:0 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster recipe=http://127.0.0.1:2380 \
		>"$RUN/etcd.log" 2>&1 </dev/null &
	remember etcd $!
	until etcd_answers "$url"; do
		is_running etcd && ! late || fail etcd
		sleep 0.1
	done
}

# ---- checks: all of them before anything starts ----
# The engine that an agent is to start must be there; a warning, because the agent says more when it tries.
engine_check() {
	local argv program module
	argv=$("$BIN/cgn-agent" --config "$1" --print-argv 2>/dev/null | tr -d '\n' | sed -n 's/.*"argv": *\[\([^]]*\)\].*/\1/p') || return 0
	[ -n "$argv" ] || return 0
	program=$(sed -n 's/^ *"\([^"]*\)".*/\1/p' <<<"$argv")
	command -v "$program" >/dev/null || { say "warning: $(basename "$1"): there is no program '$program'; $(engine_hint "$program")" >&2; return 0; }
	module=$(sed -n 's/^ *"[^"]*", *"-m", *"\([^"]*\)".*/\1/p' <<<"$argv")
	[ -z "$module" ] || "$program" -c "import importlib.util as u, sys; sys.exit(u.find_spec('${module%%.*}') is None)" 2>/dev/null ||
		say "warning: $(basename "$1"): $program has no module '${module%%.*}'; $(engine_hint "${module%%.*}")" >&2
}
engine_hint() {
	case ${1##*/} in
	vllm) say "install vLLM (pip install vllm) and put its folder into PATH, or set engine.binary" ;;
	python3|python|sglang) say "install SGLang (pip install sglang), and set engine.binary to the python3 of its environment" ;;
	llama-server) say "install llama.cpp and put llama-server into PATH, or set engine.binary" ;;
	trtllm-serve) say "install TensorRT-LLM (pip install tensorrt-llm) and put its folder into PATH, or set engine.binary" ;;
	*) say "install it, or set engine.binary" ;;
	esac
}
check() { # PROGRAM CONFIG: print the effective configuration, or stop with the error
	"$BIN/$1" --check --config "$2"
}
value() { # CONFIG SECTION KEY: print the text in the program's effective configuration; of a list, the first
	"$BIN/cgn-router" --check --config "$1" 2>/dev/null |
		awk -v at="[$2]" -v key="$3" '/^\[/ { here = $1 == at } here && $1 == key && !seen++ && split($0, part, "\"") > 1 { print part[2] }'
}
check cgn-router "$dir/router.toml" >/dev/null || die "$dir/router.toml is not valid"
for toml in "${agents[@]}"; do check cgn-agent "$toml" >/dev/null || die "$toml is not valid"; done
for toml in ${stores[@]+"${stores[@]}"}; do check cgn-kvcached "$toml" >/dev/null || die "$toml is not valid"; done
http=$(value "$dir/router.toml" router listen); admin=$(value "$dir/router.toml" router listen_admin)
printf 'http://127.0.0.1:%s\n' "${http##*:}" > "$RUN/http"
printf 'http://%s\n' "$admin" > "$RUN/admin"
for toml in "${agents[@]}"; do engine_check "$toml"; done

step "starting $(realpath --relative-to="$ROOT" "$dir"): one router, ${#agents[@]} agents${stores[0]:+, ${#stores[@]} block stores}"
[ "$(value "$dir/router.toml" cluster state_backend)" != etcd ] || etcd_ready "$(value "$dir/router.toml" cluster etcd_endpoints)"
start router cgn-router "$dir/router.toml"
for toml in ${stores[@]+"${stores[@]}"}; do
	name=$(basename "$toml" .toml)
	COGNITORA__KV__UDS=$RUN/$name.sock COGNITORA__KV__SSD_DIR=$RUN/$name.ssd start "$name" cgn-kvcached "$toml"
	until [ -S "$RUN/$name.sock.bulk" ]; do
		is_running "$name" || fail "$name"
		! late || { say "$name does not listen after ${CGN_UP_TIMEOUT:-900} s" >&2; fail "$name"; }
		sleep 0.05
	done
done
slot_dirs() { # NAME TOML: export a folder for the slots of each engine; the variables' names are in |slots|
	local i n
	n=$(grep -c '^\[\[engines\]\]' "$2" || true) slots=()
	[ "$n" -gt 0 ] || { slots=(COGNITORA__ENGINE__SLOT_DIR); export COGNITORA__ENGINE__SLOT_DIR=$RUN/$1.slots; return; }
	for ((i = 0; i < n; i++)); do
		slots+=("COGNITORA__ENGINES__${i}__SLOT_DIR")
		export "COGNITORA__ENGINES__${i}__SLOT_DIR=$RUN/$1.slots-$i"
	done
}
for toml in "${agents[@]}"; do
	name=$(basename "$toml" .toml) store=''
	for known in kvcached "kv-${name#agent-}"; do [ ! -f "$dir/$known.toml" ] || store=$known; done
	if [ -n "$store" ]; then
		slot_dirs "$name" "$toml"
		COGNITORA__AGENT__KV_UDS=$RUN/$store.sock start "$name" cgn-agent "$toml"
		unset "${slots[@]}"
	else
		COGNITORA__AGENT__KV_UDS='' start "$name" cgn-agent "$toml"
	fi
done

# ---- the wait ----
field() { grep -o "\"$1\":\"\{0,1\}[^\",}]*" | head -n 1 | sed 's/^[^:]*:"\{0,1\}//'; } # the first one of that name

# Look at the engines of every agent: count the agents whose engines are all ready, and keep what the others wait for. An engine that ended
# ends the recipe: its agent would start it again, but the same files give the same end.
look_at_engines() {
	local toml name listen engines one
	ready=0 waits=''
	for toml in "${agents[@]}"; do
		name=$(basename "$toml" .toml) listen=${admins[$toml]}
		engines=$(curl -fsS -m 2 "http://$listen/engines" 2>/dev/null | sed 's/.*"engines":\[//; s/{"name"/\n{"name"/g' | grep '^{"name"') || { waits=${waits:-$name starts}; continue; }
		while read -r one; do
			case $one in *'"state":"backoff"'*) ;; *'"restarts":0,'*) false ;; esac && {
				grep -F '"event":"engine.' "$RUN/$name.log" | tail -n 3 >&2 || true
				give_up "$name: engine $(field name <<<"$one"): $(sed -n 's/.*"trouble":"\(\([^"\\]\|\\.\)*\)".*/\1/p' <<<"$one"); its log was kept: $RUN/$name.log"
			}
			case $one in *'"on_demand":{'*) continue ;; esac # loaded by the first request
			[ "$(field ready <<<"$one")" = true ] || waits=${waits:-"$name: engine $(field name <<<"$one") is $(field state <<<"$one")"}
		done <<<"$engines"
		grep -v '"on_demand":{' <<<"$engines" | grep -q '"ready":false' || ready=$((ready + 1))
	done
}
declare -A admins
for toml in "${agents[@]}"; do admins[$toml]=$(value "$toml" agent listen_admin); done

progress() { # TEXT: say it when some seconds went by without a line
	if [ $((SECONDS - said)) -ge "${CGN_HEARTBEAT:-10}" ]; then say "    $SECONDS s: $1"; said=$SECONDS; fi
}
said=$SECONDS ready=0 waits='' nodes=0
until [ "$ready" = "${#agents[@]}" ] && [ "$nodes" = "${#agents[@]}" ]; do
	for name in $(names); do is_running "$name" || fail "$name"; done
	! late || give_up "only $ready of ${#agents[@]} agents are ready after ${CGN_UP_TIMEOUT:-900} s: $waits; logs are in $RUN"
	progress "${waits:-$nodes of ${#agents[@]} nodes are known to the router}"
	sleep 0.1
	look_at_engines
	nodes=$({ curl -fsS -m 2 "$(cat "$RUN/admin")/nodes" 2>/dev/null || true; } | { grep -o '"state": *"ready"' || true; } | wc -l)
done

# A node that is ready has answered a health check; only an answer shows that the model works.
answer_of() { # MODEL: print the HTTP status, and the body into $RUN/answer
	curl -sS -m "$((limit - SECONDS + 1))" -o "$RUN/answer" -w '%{http_code}' "$(cat "$RUN/http")/v1/chat/completions" -H 'Content-Type: application/json' \
		-d "{\"model\":$(json_text "$1"),\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}" 2>/dev/null || true
}
mapfile -t models < <(curl -fsS -m 5 "$(cat "$RUN/http")/v1/models" | grep -o '"id": *"[^"]*"' | sed 's/.*"\([^"]*\)"$/\1/')
[ "${#models[@]}" -gt 0 ] || give_up "the router lists no model; logs are in $RUN"
for model in "${models[@]}"; do
	until status=$(answer_of "$model") && [ "$status" = 200 ]; do
		for name in $(names); do is_running "$name" || fail "$name"; done
		look_at_engines
		case $status in 503|000) ! late || give_up "no answer of model $model after ${CGN_UP_TIMEOUT:-900} s: $(head -c 300 "$RUN/answer" 2>/dev/null)" ;;
		*) give_up "model $model answers with status $status: $(head -c 300 "$RUN/answer"); logs are in $RUN" ;; esac
		progress "model $model does not answer yet"
		sleep 0.2
	done
done
rm -f "$RUN/answer"
step "${#agents[@]} nodes are ready, ${models[*]} answers; logs are in $RUN"
curl_lines "${models[0]}"
