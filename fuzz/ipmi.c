/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz ipmi: any lines of ipmitool give readings that are numbers or say why not. */
#include <math.h>

#include "policy/power/ipmi/ipmi.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_reading(const struct power_reading *r)
{
	CGN_MUST(r->component < POWER_COMPONENTS && r->quantity < POWER_QUANTITIES);
	CGN_MUST(r->source == POWER_FROM_IPMI);
	CGN_MUST(r->state == POWER_FRESH ? isfinite(r->value) : r->why[0] != '\0' && fabs(r->value) < 1e-9);
	CGN_MUST(cgn_utf8_valid(r->part, strlen(r->part)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_str rest = {(const char *)data, n};
	struct ipmi_dcmi d = {0};
	struct power_reading r;
	while (rest.p != NULL) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		if (ipmi_read_sensor(line, &r))
			check_reading(&r);
		ipmi_dcmi_line(&d, line);
	}
	ipmi_dcmi_reading(&d, &r);
	check_reading(&r);
	return 0;
}
