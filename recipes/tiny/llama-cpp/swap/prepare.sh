# Sourced by scripts/run/up.sh.
. "$ROOT/recipes/_lib/llama.sh"
second=${LLAMA_GGUF_2:-$cache/tiny-2.gguf}
if [ -n "${LLAMA_GGUF_2:-}" ]; then
	[ -r "$second" ] || die "LLAMA_GGUF_2=$second: no such file, or not readable"
	COGNITORA__ENGINES__1__MODEL=$(basename "$second" .gguf)
	export COGNITORA__ENGINES__1__MODEL
else
	[ -f "$second" ] || python3 "$ROOT/scripts/run/tiny-gguf.py" "$second" 2 >/dev/null
fi
export COGNITORA__ENGINES__0__MODEL_PATH=$COGNITORA__ENGINE__MODEL_PATH COGNITORA__ENGINES__1__MODEL_PATH=$second
[ -z "${COGNITORA__ENGINE__MODEL:-}" ] || export COGNITORA__ENGINES__0__MODEL=$COGNITORA__ENGINE__MODEL
[ -z "${COGNITORA__ENGINE__BINARY:-}" ] || export COGNITORA__ENGINES__0__BINARY=$COGNITORA__ENGINE__BINARY COGNITORA__ENGINES__1__BINARY=$COGNITORA__ENGINE__BINARY
unset COGNITORA__ENGINE__MODEL_PATH COGNITORA__ENGINE__MODEL COGNITORA__ENGINE__BINARY
