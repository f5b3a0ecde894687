#!/usr/bin/env bash
# scripts/run/status.sh: print which programs of the last recipe are running.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_run.sh"
[ -f "$RUN/recipe" ] || { say "nothing is running"; exit 1; }
say "recipe  $(realpath --relative-to="$ROOT/recipes" "$(cat "$RUN/recipe")")"
say "gateway $(cat "$RUN/http")"
dead=0
for name in $(names); do
	read -r pid _ < "$RUN/$name.pid"
	if is_running "$name"; then say "$name running, pid $pid"; else say "$name DEAD, its log: $RUN/$name.log"; dead=1; fi
done
[ -n "$(names)" ] || { say "nothing is running"; exit 1; }
exit $dead
