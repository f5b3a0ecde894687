/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz tracing: the written header continues the one that was read, and a header without a parent begins a
 * trace. */
#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"
#include "policy/answer/tracing/tracing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	const struct tracing_rules rules = {TRACING_SHARE, true, 0.5};
	const uint64_t random[3] = {n, 2, 3};
	char text[TRACING_PARENT_TEXT + 1];
	struct tracing_context c, next;
	struct tracing_rules read;
	struct cgn_err err;
	char *copy = cgn_str_dupz((struct cgn_str){(const char *)data, n}); /* A block of its own. */
	CGN_MUST(copy != NULL);
	tracing_begin(&rules, (struct cgn_str){copy, n}, random, &c);
	CGN_MUST(c.span != 0);
	tracing_parent_write(&c, tracing_child(&c, 1), text);
	tracing_begin(&rules, cgn_str_of(text), random, &next);
	CGN_MUST(next.parent == tracing_child(&c, 1) && memcmp(next.trace, c.trace, sizeof c.trace) == 0 &&
		next.sampled == c.sampled);
	(void)!cgn_ok(tracing_rules_read(CGN_STR("traceidratio"), (struct cgn_str){copy, n}, &read, &err));
	free(copy);
	return 0;
}
