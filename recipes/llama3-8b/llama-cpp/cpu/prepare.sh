# Sourced by scripts/run/up.sh.
[ -n "${LLAMA_GGUF:-}" ] || die "name the model: LLAMA_GGUF=~/models/Meta-Llama-3.1-8B-Instruct.Q4_K_M.gguf (tiny/llama-cpp/cpu runs without one)"
. "$ROOT/recipes/_lib/llama.sh"
export COGNITORA__ENGINE__MODEL=llama3-8b
