/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz cascade_rates: lines of the pre-gate's rates. Lines that are taken have rates from 0 to 1, and can be
 * read again once they are written. */
#include "policy/answer/cascade/cascade.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct cascade_rates once, twice;
	struct cgn_buf text = {0};
	struct cgn_err err;
	if (!cgn_ok(cascade_rates_take((struct cgn_str){(const char *)data, n}, &once, &err)))
		return 0;
	for (unsigned i = 0; i < CASCADE_CELLS; i++)
		CGN_MUST(once.cells[i].asked >= 0 && once.cells[i].escalated >= 0 &&
			once.cells[i].escalated <= once.cells[i].asked);
	cascade_rates_put(&once, &text);
	CGN_MUST(text.bad || cgn_ok(cascade_rates_take(cgn_buf_view(&text), &twice, &err)));
	cgn_buf_fini(&text);
	return 0;
}
