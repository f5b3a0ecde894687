/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz season: lines of the loads by the time of the day. Lines that are taken are written and read again
 * unchanged, and their usual loads are finite and not negative. */
#include <math.h>

#include "policy/fleet/autoscale/season.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void lines_take(struct autoscale_season *s, struct cgn_str rest, bool sure)
{
	struct cgn_err err;
	while (rest.n > 0) {
		cgn_rc rc = autoscale_season_take(s, cgn_str_split(&rest, '\n'), &err);
		CGN_MUST(cgn_ok(rc) || !sure);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_buf once = {0}, twice = {0};
	struct autoscale_season s = {.n = 0}, same = {.n = 0};
	lines_take(&s, (struct cgn_str){(const char *)data, n}, false);
	autoscale_season_put(&s, &once);
	lines_take(&same, cgn_buf_view(&once), true);
	autoscale_season_put(&same, &twice);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&once), cgn_buf_view(&twice)));
	for (uint64_t at = 0; at < 7 * 86400; at += 10007) {
		double load = autoscale_season_expect(&s, at, at * CGN_SEC);
		CGN_MUST(load >= 0 && isfinite(load));
	}
	cgn_buf_fini(&once);
	cgn_buf_fini(&twice);
	return 0;
}
