# Sourced by scripts/run/up.sh.
. "$ROOT/recipes/_lib/llama.sh"
. "$ROOT/recipes/_lib/pki.sh"
