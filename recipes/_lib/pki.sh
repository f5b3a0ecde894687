# Sourced by a recipe's prepare.sh: make a CA for this run, a certificate for each program, which up.sh passes to the program of that name, and a
# certificate ("admin") for cgn-ctl.
[ -x "$BIN/cgn-ctl" ] || die "$BIN/cgn-ctl does not exist; build first (scripts/up does), or set CGN_BIN to the folder of the programs"
setting() { # FILE KEY: the text of a setting; empty when the file does not have it
	sed -nE "s/^$2 *= *\"([^\"]*)\".*/\1/p" "$1" | head -n 1
}
leaves=(--name "$(setting "$dir/router.toml" name)" --leaf admin)
for toml in "$dir"/router.toml "$dir"/agent-*.toml "$dir"/kv-*.toml; do
	[ -f "$toml" ] || continue
	name=$(basename "$toml" .toml) role=${toml##*/} node=$(setting "$toml" node_id)
	role=${role%%[-.]*}
	leaves+=(--leaf "$name=${role/#kv/kvcached}@${node:-$name}")
done
step "making certificates for $((${#leaves[@]} / 2 - 2)) programs"
"$BIN/cgn-ctl" pki bootstrap --out "$RUN/pki" "${leaves[@]}" >/dev/null || die "the certificates could not be made"
