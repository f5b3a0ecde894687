#!/usr/bin/env bash
# scripts/run/status.sh [--json]: print which programs of the last recipe are running. Exit 1 when nothing runs, or one of them has ended.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/_run.sh"
take_help "--json" 0 "$@"
recipe=$(recipe_running)
dead=0 rows=''

text_row() { if [ "$2" = running ]; then say "$1 running, pid $3"; else say "$1 DEAD, its log: $RUN/$1.log"; fi; }
json_row() {
	rows+=${rows:+,}$(printf '{"program":%s,"state":"%s","pid":%s,"log":%s}' "$(json_text "$1")" "$2" "$3" "$(json_text "$RUN/$1.log")")
}

row=text_row
if [ "${1:-}" = --json ]; then row=json_row; elif [ -z "$recipe" ]; then say "nothing is running"; exit 1; else
	say "recipe  $recipe"
	say "gateway $(cat "$RUN/http")"
fi
for name in $(names); do
	read -r pid _ < "$RUN/$name.pid"
	if is_running "$name"; then "$row" "$name" running "$pid"; else "$row" "$name" dead "$pid"; dead=1; fi
done
if [ "$row" = json_row ]; then
	printf '{"recipe":%s,"gateway":%s,"programs":[%s]}\n' "$([ -n "$recipe" ] && json_text "$recipe" || printf null)" \
		"$([ -n "$recipe" ] && json_text "$(cat "$RUN/http")" || printf null)" "$rows"
fi
[ -n "$recipe" ] || exit 1
exit $dead
