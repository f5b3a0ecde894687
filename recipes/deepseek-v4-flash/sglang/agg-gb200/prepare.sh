# Sourced by scripts/run/up.sh: MODEL_PATH, and a warning when the weights cannot be downloaded.
. "$ROOT/recipes/_lib/hub.sh"
hub_weights "deepseek-ai/DeepSeek-V4-Flash"
