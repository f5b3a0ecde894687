#!/usr/bin/env bash
# scripts/run/hello.sh: send one streamed chat request to the running cluster; print the answer and the node that answered.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_run.sh"
take_help "" 0 "$@"
[ -f "$RUN/http" ] || die "nothing is running; scripts/up starts a cluster"
url=$(cat "$RUN/http")
model=$(curl -fsS -m 5 "$url/v1/models" | sed -n 's/.*"id": *"\([^"]*\)".*/\1/p' | head -n 1)
[ -n "$model" ] || die "the router at $url lists no model"
body="{\"model\":\"$model\",\"stream\":true,\"max_tokens\":24,\"messages\":[{\"role\":\"user\",\"content\":\"Hello! Who are you?\"}]}"
head=$(mktemp)
trap 'rm -f "$head"' EXIT
step "POST $url/v1/chat/completions (streamed, model $model)"
printf '    '
curl -fsSN -m 60 -D "$head" "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$body" |
	sed -un 's/.*"content": *"\(\([^"\\]\|\\.\)*\)".*/\1/p' | tr -d '\n' || die "the chat request failed; the logs are in $RUN"
printf '\n'
step "answered by node $(sed -n 's/^x-cgn-node: *//Ip' "$head" | tr -d '\r')"
