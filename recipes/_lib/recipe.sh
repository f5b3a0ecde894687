# The driver that every recipe's up.sh sources: build preflight, then scripts/run/up.sh, then the curl lines.
recipe_up() {
	local here=$1 root
	root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
	if [ -n "${CGN_PREBUILT:-}" ]; then
		"$root/scripts/run/up.sh" "$here"
	else
		"$root/scripts/up" "$(realpath --relative-to="$root/recipes" "$here")"
	fi
}
