# Sourced by a recipe's prepare.sh: a CA of this run's own, and of it a certificate for each program, which up.sh gives to the program of that name, and one
# ("admin") for who looks on with cgn-ctl.
[ -x "$BIN/cgn-ctl" ] || die "$BIN/cgn-ctl is not there; build first (scripts/up does), or set CGN_BIN to where the programs are"
leaves=(--leaf admin)
for toml in "$dir"/router.toml "$dir"/agent-*.toml "$dir"/kv-*.toml; do
	[ ! -f "$toml" ] || leaves+=(--leaf "$(basename "$toml" .toml)")
done
step "making certificates for $((${#leaves[@]} / 2 - 1)) programs"
"$BIN/cgn-ctl" pki bootstrap --out "$RUN/pki" "${leaves[@]}" >/dev/null || die "the certificates could not be made"
