/* SPDX-License-Identifier: Apache-2.0 */
/* rates: the pre-gate's rates as lines of a file. */
#include <inttypes.h>
#include <math.h>

#include "policy/answer/cascade/cascade.h"

#define THOUSAND 1000
#define MOST     1000  /* answers of a cell; more than one ever counts */
#define KEPT     40.0F /* answers that a cell counts as, at most, after a restart */

static long in_thousandths(float n)
{
	return lround((double)n * THOUSAND);
}

void cascade_rates_put(const struct cascade_rates *r, struct cgn_buf *out)
{
	for (unsigned i = 0; i < CASCADE_CELLS; i++)
		if (r->cells[i].asked > 0)
			cgn_buf_fmt(out, "cell %u %ld %ld\n", i, in_thousandths(r->cells[i].asked),
				in_thousandths(r->cells[i].escalated));
}

static bool cell_take(struct cgn_str line, struct cascade_rates *r)
{
	uint64_t at = 0, asked = 0, escalated = 0;
	if (!cgn_str_is(cgn_str_split(&line, ' '), "cell") || !cgn_str_u64(cgn_str_split(&line, ' '), &at) ||
		!cgn_str_u64(cgn_str_split(&line, ' '), &asked) || !cgn_str_u64(line, &escalated) ||
		at >= CASCADE_CELLS || asked == 0 || asked > (uint64_t)MOST * THOUSAND || escalated > asked)
		return false;
	float answers = fminf((float)asked / THOUSAND, KEPT);
	r->cells[at] = (struct cascade_cell){.asked = answers,
		.escalated = answers * (float)((double)escalated / (double)asked)};
	return true;
}

CGN_RC cascade_rates_take(struct cgn_str lines, struct cascade_rates *out, struct cgn_err *err)
{
	*out = (struct cascade_rates){.cells = {{.asked = 0}}};
	while (lines.n > 0) {
		struct cgn_str line = cgn_str_split(&lines, '\n');
		if (!cell_take(line, out))
			return CGN_FAIL(err, INVALID, "no line of rates: %.*s",
				(int)(line.n < 60 ? line.n : 60), line.p);
	}
	return CGN_OK;
}
