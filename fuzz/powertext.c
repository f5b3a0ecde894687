/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz powertext: any exposition gives readings within bounds, each of them a number or a reason. */
#include "policy/power/powertext/powertext.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_reading(const struct power_reading *r)
{
	CGN_MUST(r->component < POWER_COMPONENTS && r->quantity < POWER_QUANTITIES &&
		r->source < POWER_SOURCES);
	CGN_MUST(r->state == POWER_FRESH ? isfinite(r->value) : r->why[0] != '\0' && fabs(r->value) < 1e-9);
	CGN_MUST(cgn_utf8_valid(r->part, strlen(r->part)) && cgn_utf8_valid(r->node, strlen(r->node)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct power_reading out[32];
	struct powertext t = {.node = n % 2 == 0 ? "n1" : NULL,
		.time = CGN_SEC,
		.max_age = CGN_SEC,
		.out = out,
		.cap = CGN_COUNT(out)};
	bool is_power = powertext_read((struct cgn_str){(const char *)data, n}, &t);
	CGN_MUST(t.n <= t.cap && (is_power || t.n == 0));
	for (size_t i = 0; i < t.n; i++) {
		check_reading(&out[i]);
		for (size_t k = 0; k < i; k++)
			CGN_MUST(!power_same(&out[i], &out[k]));
	}
	return 0;
}
