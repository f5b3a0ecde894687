#!/usr/bin/env bash
# scripts/run/chart-tools.sh: print the folder of helm, kubeconform, and crds/, the definitions of kinds that are others': Go builds and fetches them from
# their modules, once (4 minutes on 2 cores). The folder is ~/.cache/cognitora/go-tools. tests/kube and scripts/gen-quickstart use it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../_lib.sh"
take_help "" 0 "$@"
helm=v3.19.0 kubeconform=v0.7.0
bin=${XDG_CACHE_HOME:-$HOME/.cache}/cognitora/go-tools
go=$(command -v go || command -v /usr/local/go/bin/go) || { echo "chart-tools: no go: install golang-go" >&2; exit 1; }
mkdir -p "$bin/crds"
exec 9> "$bin/.lock"
flock 9 # another run may be building
[ -x "$bin/helm" ] || GOBIN=$bin "$go" install helm.sh/helm/v3/cmd/helm@$helm >&2
[ -x "$bin/kubeconform" ] || GOBIN=$bin "$go" install github.com/yannh/kubeconform/cmd/kubeconform@$kubeconform >&2
take_definition() { # MODULE FILE: copy a file of the module
	[ -e "$bin/crds/${2##*/}" ] && return
	local dir
	dir=$("$go" mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	install -m 644 "$dir/$2" "$bin/crds/"
}
operator=github.com/prometheus-operator/prometheus-operator@v0.85.0
take_definition $operator example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml
take_definition $operator example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml
take_definition sigs.k8s.io/gateway-api@v1.4.1 config/crd/standard/gateway.networking.k8s.io_httproutes.yaml
take_definition sigs.k8s.io/gateway-api-inference-extension@v1.2.0 config/crd/bases/inference.networking.k8s.io_inferencepools.yaml
echo "$bin"
