/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz redfish: any bytes as any document give links of the same BMC and readings that are numbers or say why not; the
 * first byte chooses the document. */
#include <math.h>
#include <stdlib.h>

#include "policy/power/redfish/redfish.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_link(void *user, const struct redfish_link *link)
{
	char again[REDFISH_PATH_BYTES];
	(void)user;
	CGN_MUST(link->role < REDFISH_ROLES && redfish_role_name(link->role) != NULL);
	CGN_MUST(redfish_path(cgn_str_of(link->path), again) && strcmp(again, link->path) == 0);
	CGN_MUST(strlen(link->part) < POWER_NAME_BYTES);
}

static void check_reading(void *user, const struct power_reading *r)
{
	(void)user;
	CGN_MUST(r->component < POWER_COMPONENTS && r->quantity < POWER_QUANTITIES);
	CGN_MUST(r->state == POWER_FRESH ? isfinite(r->value) : r->why[0] != '\0' && fabs(r->value) < 1e-9);
	CGN_MUST(cgn_utf8_valid(r->part, strlen(r->part)) && cgn_utf8_valid(r->why, strlen(r->why)));
	CGN_MUST(cgn_utf8_valid(r->kind, strlen(r->kind)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const struct redfish_ops ops = {.on_link = check_link, .on_reading = check_reading};
	if (n < 1)
		return 0;
	const struct redfish_link at = {.role = (enum redfish_role)(data[0] % REDFISH_ROLES),
		.component = data[0] % 2 == 0 ? POWER_CHASSIS : POWER_PSU,
		.path = REDFISH_ROOT,
		.part = "1U"};
	char *body = malloc(n); /* A block of its own, of the exact size */
	CGN_MUST(body != NULL);
	memcpy(body, data + 1, n - 1);
	(void)!redfish_read(&at, (struct cgn_str){body, n - 1}, &ops, NULL, NULL).code;
	free(body);
	return 0;
}
