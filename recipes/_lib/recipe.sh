# Sourced by every recipe's up.sh: start the recipe by scripts/up, which builds first, or with CGN_PREBUILT directly by scripts/run/up.sh.
recipe_up() {
	local here=$1 root
	root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
	if [ -n "${CGN_PREBUILT:-}" ]; then
		"$root/scripts/run/up.sh" "$here"
	else
		"$root/scripts/up" "$(realpath --relative-to="$root/recipes" "$here")"
	fi
}
