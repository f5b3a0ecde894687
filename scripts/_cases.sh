# Shared by scripts/test and its tests: run cases by pytest, count what comes out, and judge those that failed. Sourced after _lib.sh, not run.
#
# A case may fail because of what runs beside it on a busy machine. One that failed is run three times more at the end, with nothing beside it. If it passes
# each time it is unsteady: it is named, its output is printed, and it does not count as failed. More than UNSTEADY_MOST of them count as failed after all. A
# case with a sanitizer's report, a broken invariant or a crash in its output is never run again.
#
# $out: a folder for files. ok, bad, waiting: the counts of the running suite: passed, failed, to be run again. passed, failed: those of the whole run.
UNSTEADY_MOST=3
AGAIN_MOST=12   # if more cases fail, the fault is not in their neighbours
PARALLEL=       # arguments of pytest-xdist; empty: one case after the other
later=0         # seconds that the suites after this one take
ok=0 bad=0 waiting=0 passed=0 failed=0
soft=()         # "SUITE NUMBER CASE": failed cases that are run again

number() { # print the number on the first line, or 0: an empty operand in $(( )) would end the calling function and hide its failure
	awk 'NR == 1 { n = $1 } END { print n + 0 }'
}

environment() { # SUITE: set the build, the interpreter and the variables of its programs
	unset ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS CGN_SANITIZER
	PYTHON=/usr/bin/python3 BUILD=build/ci
	case $1 in
	asan)
		BUILD=build/asan
		export CGN_SANITIZER=asan ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:exitcode=99 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ;;
	tsan)
		BUILD=build/tsan
		export CGN_SANITIZER=tsan TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:exitcode=99:suppressions=$ROOT/tests/tsan.supp ;;
	interop) PYTHON=$ROOT/build/venv/bin/python ;;
	clouds) PYTHON=$ROOT/build/venv-clouds/bin/python ;;
	esac
	export CGN_BUILD=$ROOT/$BUILD
}
pytests() { # SUITE PYTEST-ARG...: run the cases. Those that failed without a crash or a sanitizer's report wait in the array soft
	local suite=$1 word rest before=$((ok + bad + waiting))
	shift
	environment "$suite"
	"$PYTHON" -m pytest -q -o cache_dir="$out/cache" -rfE --outcome "$out/$suite" --progress "$suite" --later-s "$later" $PARALLEL "$@" >"$out/pytest" 2>&1 </dev/null ||
		tail -n "${CGN_TEST_LINES:-120}" "$out/pytest"
	[ -f "$out/$suite/cases" ] || { bad=$((bad + 1)); return; }
	while read -r word rest; do
		case $word in
		passed) ok=$((ok + rest)) ;;
		broken|skipped) [ "$word" = skipped ] || bad=$((bad + rest)) ;;
		hard)
			bad=$((bad + 1))
			say "FAILED $suite: ${rest#* } (a crash or a sanitizer's report: it is not run again)" ;;
		soft) soft+=("$suite $rest") waiting=$((waiting + 1)) ;;
		esac
	done <"$out/$suite/cases"
	[ $((ok + bad + waiting)) -gt "$before" ] || bad=$((bad + 1)) # nothing ran
}

alone() { # SUITE CASE: run the case three times with nothing beside it
	local n
	environment "$1"
	for n in 1 2 3; do
		"$PYTHON" -m pytest -q -o cache_dir="$out/cache" -rfE "$2" >"$out/alone" 2>&1 </dev/null && grep -q '[1-9][0-9]* passed' "$out/alone" || return 1
	done
}
run_again() { # judge the cases of soft: one that passes three times alone is unsteady, not failed
	local suite number case unsteady=0
	[ "${#soft[@]}" -gt 0 ] || return 0
	if [ "${#soft[@]}" -gt "$AGAIN_MOST" ]; then
		say "${#soft[@]} cases failed: too many to be run again"
		failed=$((failed + ${#soft[@]}))
		return
	fi
	for case in "${soft[@]}"; do
		read -r suite number case <<<"$case"
		if alone "$suite" "$case"; then
			unsteady=$((unsteady + 1))
			say "unsteady: $case ($suite; it passed three times alone). It failed with:"
			tail -n 60 "$out/$suite/$number" | sed 's/^/    /'
		else
			failed=$((failed + 1))
			say "FAILED $suite: $case (alone too)"
			tail -n 60 "$out/alone" | sed 's/^/    /'
		fi
	done
	[ "$unsteady" = 0 ] || say "$unsteady unsteady"
	if [ "$unsteady" -gt "$UNSTEADY_MOST" ]; then
		say "more than $UNSTEADY_MOST unsteady cases count as failed"
		failed=$((failed + unsteady))
	else
		passed=$((passed + unsteady))
	fi
}
