# Sourced by a recipe's prepare.sh. hub_weights NAME: take MODEL_PATH if it is set; else warn when the model NAME is neither in the hub's
# cache nor can be downloaded because HF_TOKEN is missing.
hub_weights() {
	local name=$1 cached
	if [ -n "${MODEL_PATH:-}" ]; then
		[ -e "$MODEL_PATH" ] || die "MODEL_PATH=$MODEL_PATH: no such file or folder"
		COGNITORA__ENGINE__MODEL_PATH=$(realpath "$MODEL_PATH")
		export COGNITORA__ENGINE__MODEL_PATH
		return 0
	fi
	cached=${HF_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}/models--${name//\//--}
	[ -d "$cached" ] || [ -n "${HF_TOKEN:-}" ] ||
		say "warning: the weights of $name are not in $cached and HF_TOKEN is not set: the engine downloads them, or fails when the model is gated; MODEL_PATH names weights in a folder" >&2
}
