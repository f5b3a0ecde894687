/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz audit: no text breaks the reading of a line; a sealed line fits its predecessor, and no changed line
 * does. */
#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"
#include "policy/who/audit/audit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_chain(struct cgn_str first)
{
	struct audit_chain from = {0}, c, other;
	struct cgn_buf line = {0};
	if (!cgn_ok(audit_begin(&from, first, NULL)) || from.seq == UINT64_MAX)
		return;
	audit_seal(&from, CGN_STR("{\"event\":\"x\"}\n"), &line);
	CGN_MUST(!line.bad);
	struct cgn_str sealed = {line.p, line.n - 1};
	c = from;
	CGN_MUST(cgn_ok(audit_follow(&c, sealed, NULL)) && c.seq == from.seq + 1);
	other = from;
	other.head.b[0] ^= 1;
	CGN_MUST(!cgn_ok(audit_follow(&other, sealed, NULL)));
	cgn_buf_fini(&line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct audit_chain c = {0};
	char *text = cgn_str_dupz((struct cgn_str){(const char *)data, n});
	CGN_MUST(text != NULL);
	(void)!cgn_ok(audit_follow(&c, (struct cgn_str){text, n}, NULL));
	check_chain((struct cgn_str){text, n});
	free(text);
	return 0;
}
