# Sourced by a recipe's prepare.sh: find a llama-server and a model, and name them in the environment of the agents.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cognitora
mkdir -p "$cache"
if [ -n "${LLAMA_GGUF:-}" ]; then
	[ -r "$LLAMA_GGUF" ] || die "LLAMA_GGUF=$LLAMA_GGUF: no such file, or not readable"
	COGNITORA__ENGINE__MODEL_PATH=$(realpath "$LLAMA_GGUF")
	COGNITORA__ENGINE__MODEL=$(basename "$LLAMA_GGUF" .gguf)
	export COGNITORA__ENGINE__MODEL
else
	[ -f "$cache/tiny.gguf" ] || { step "generating a tiny random model (2.9 MB; it answers nonsense)"; python3 "$ROOT/scripts/run/tiny-gguf.py" "$cache/tiny.gguf" >/dev/null; }
	COGNITORA__ENGINE__MODEL_PATH=$cache/tiny.gguf
fi
export COGNITORA__ENGINE__MODEL_PATH
if ! command -v llama-server >/dev/null; then
	export CGN_LLAMA_CACHE="$cache/llama"
	"$ROOT/scripts/run/llama-server" --fetch || die "llama-server could not be fetched; install llama.cpp and put llama-server into PATH"
	COGNITORA__ENGINE__BINARY=$ROOT/scripts/run/llama-server
	export COGNITORA__ENGINE__BINARY
fi
