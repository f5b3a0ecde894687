# Sourced by a recipe's prepare.sh: make a CA for this run, a certificate for each program, which up.sh passes to the program of that name, and a
# certificate ("admin") for cgn-ctl.
[ -x "$BIN/cgn-ctl" ] || die "$BIN/cgn-ctl does not exist; build first (scripts/up does), or set CGN_BIN to the folder of the programs"
leaves=(--leaf admin)
for toml in "$dir"/router.toml "$dir"/agent-*.toml "$dir"/kv-*.toml; do
	[ ! -f "$toml" ] || leaves+=(--leaf "$(basename "$toml" .toml)")
done
step "making certificates for $((${#leaves[@]} / 2 - 1)) programs"
"$BIN/cgn-ctl" pki bootstrap --out "$RUN/pki" "${leaves[@]}" >/dev/null || die "the certificates could not be made"
