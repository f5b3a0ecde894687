# Sourced by scripts/run/up.sh: MODEL_PATH, and a warning when the weights cannot be downloaded.
. "$ROOT/recipes/_lib/hub.sh"
hub_weights "meta-llama/Llama-3.1-8B-Instruct"
