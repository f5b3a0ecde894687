#!/usr/bin/env bash
# scripts/run/chart-tools.sh: print the folder of helm, which Go builds there from its module, once (3 minutes on 2 cores). The folder is
# ~/.cache/cognitora/go-tools. tests/kube and scripts/gen-quickstart use it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../_lib.sh"
take_help "" 0 "$@"
helm=v3.19.0
bin=${XDG_CACHE_HOME:-$HOME/.cache}/cognitora/go-tools
go=$(command -v go || command -v /usr/local/go/bin/go) || { echo "chart-tools: no go: install golang-go" >&2; exit 1; }
mkdir -p "$bin"
exec 9> "$bin/.lock"
flock 9 # another run may be building
[ -x "$bin/helm" ] || GOBIN=$bin "$go" install helm.sh/helm/v3/cmd/helm@$helm >&2
echo "$bin"
