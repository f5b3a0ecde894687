/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz energy_series: any bytes as a series of prices; a value that is found is a price, a refusal has a reason. */
#include "policy/power/energy/series.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct cgn_err err = {0};
	double v = -1;
	if (cgn_ok(energy_series_at((struct cgn_str){(const char *)p, n}, 1763900000, 7200, &v, &err)))
		CGN_MUST(v >= 0 && v <= 1e12);
	else
		CGN_MUST(err.msg[0] != '\0');
	return 0;
}
