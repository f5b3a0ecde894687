# Sourced by scripts/run/up.sh.
. "$ROOT/recipes/_lib/vllm.sh"
