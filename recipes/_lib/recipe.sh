# Sourced by every recipe's up.sh: start the recipe by scripts/up, which builds first, or with CGN_PREBUILT directly by scripts/run/up.sh.
recipe_up() {
	local here=$1 root name
	shift
	root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
	name=$(realpath --relative-to="$root/recipes" "$here")
	case ${1:-} in
	-h|--help)
		printf 'recipes/%s/up.sh: build, then start the recipe %s (%s/README.md); scripts/down stops it\n' "$name" "$name" "$here"
		return 0 ;;
	?*) printf '%s/up.sh: unexpected argument %s\n' "$name" "$1" >&2; return 2 ;;
	esac
	if [ -n "${CGN_PREBUILT:-}" ]; then
		"$root/scripts/run/up.sh" "$here"
	else
		"$root/scripts/up" "$name"
	fi
}
